"""Token mixers, one file per mechanism; importing this package registers all of them."""

from weft.mixers.base import MIXERS, AttentionMixer, Frame, Mixer, State, Traits
from weft.mixers.fnet import FNet
from weft.mixers.linear_transformer import LinearTransformer
from weft.mixers.linformer import Linformer
from weft.mixers.reformer import Reformer
from weft.mixers.synthesizer import Synthesizer
from weft.mixers.transformer_xl import TransformerXL

__all__ = [
    "MIXERS",
    "AttentionMixer",
    "FNet",
    "Frame",
    "LinearTransformer",
    "Linformer",
    "Mixer",
    "Reformer",
    "State",
    "Synthesizer",
    "Traits",
    "TransformerXL",
]

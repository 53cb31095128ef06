"""Token mixers, one file per mechanism; importing this package registers all of them."""

from weft.mixers.axial import Axial
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Mixer, State, Traits
from weft.mixers.bigbird import BigBird
from weft.mixers.block_local import BlockLocal
from weft.mixers.fnet import FNet
from weft.mixers.full import Full
from weft.mixers.linear_transformer import LinearTransformer
from weft.mixers.linformer import Linformer
from weft.mixers.longformer import Longformer
from weft.mixers.reformer import Reformer
from weft.mixers.sliding_window import SlidingWindow
from weft.mixers.sparse_transformer import SparseTransformer
from weft.mixers.synthesizer import Synthesizer
from weft.mixers.transformer_xl import TransformerXL

__all__ = [
    "MIXERS",
    "AttentionMixer",
    "Axial",
    "BigBird",
    "BlockLocal",
    "FNet",
    "Frame",
    "Full",
    "LinearTransformer",
    "Linformer",
    "Longformer",
    "Mixer",
    "Reformer",
    "SlidingWindow",
    "SparseTransformer",
    "State",
    "Synthesizer",
    "Traits",
    "TransformerXL",
]

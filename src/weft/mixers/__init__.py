"""Token mixers, one file per mechanism; importing this package registers all of them."""

from weft.layers.projections.multiplicative import Multiplicative, MultiplicativeConv
from weft.mixers.adaptive_span import AdaptiveSpan
from weft.mixers.axial import Axial
from weft.mixers.base import (
    MIXERS,
    AttentionMixer,
    Frame,
    Mixer,
    MixerConfig,
    State,
    Traits,
)
from weft.mixers.bigbird import BigBird
from weft.mixers.block_local import BlockLocal
from weft.mixers.blockbert import BlockBert
from weft.mixers.bp_transformer import BPTransformer
from weft.mixers.brc import BRC
from weft.mixers.compressive import Compressive
from weft.mixers.dynamic_convolution import DynamicConvolution
from weft.mixers.entmax import Entmax
from weft.mixers.etc import ETC
from weft.mixers.evolved_convolution import EvolvedConvolution
from weft.mixers.fnet import FNet
from weft.mixers.full import FullAttention
from weft.mixers.gru import GRU
from weft.mixers.image_transformer import ImageTransformer
from weft.mixers.layer import attention, mixer
from weft.mixers.light_convolution import LightConvolution
from weft.mixers.linear_transformer import LinearTransformer
from weft.mixers.linformer import Linformer
from weft.mixers.longformer import Longformer
from weft.mixers.lstm import LSTM
from weft.mixers.memory_compressed import MemoryCompressed
from weft.mixers.nsa import NSA
from weft.mixers.nystromformer import Nystromformer
from weft.mixers.pattern import OwnPattern
from weft.mixers.perceiver import Perceiver
from weft.mixers.performer import Performer
from weft.mixers.reformer import Reformer
from weft.mixers.rfa import RFA
from weft.mixers.routing import Routing
from weft.mixers.set_transformer import SetTransformer
from weft.mixers.sinkhorn import Sinkhorn
from weft.mixers.sliding_window import SlidingWindow
from weft.mixers.sparse_transformer import SparseTransformer
from weft.mixers.split_encode_merge import SplitEncodeMerge
from weft.mixers.sru import SRU
from weft.mixers.swin import Swin
from weft.mixers.synthesizer import Synthesizer
from weft.mixers.transformer_xl import TransformerXL

__all__ = [
    "BRC",
    "ETC",
    "GRU",
    "LSTM",
    "MIXERS",
    "NSA",
    "RFA",
    "SRU",
    "AdaptiveSpan",
    "AttentionMixer",
    "Axial",
    "BPTransformer",
    "BigBird",
    "BlockBert",
    "BlockLocal",
    "Compressive",
    "DynamicConvolution",
    "Entmax",
    "EvolvedConvolution",
    "FNet",
    "Frame",
    "FullAttention",
    "ImageTransformer",
    "LightConvolution",
    "LinearTransformer",
    "Linformer",
    "Longformer",
    "MemoryCompressed",
    "Mixer",
    "MixerConfig",
    "Multiplicative",
    "MultiplicativeConv",
    "Nystromformer",
    "OwnPattern",
    "Perceiver",
    "Performer",
    "Reformer",
    "Routing",
    "SetTransformer",
    "Sinkhorn",
    "SlidingWindow",
    "SparseTransformer",
    "SplitEncodeMerge",
    "State",
    "Swin",
    "Synthesizer",
    "Traits",
    "TransformerXL",
    "attention",
    "mixer",
]

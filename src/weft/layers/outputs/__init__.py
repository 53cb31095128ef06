"""Outputs, one file per variant; importing this package registers all of them."""

from weft.layers.outputs.adaptive_softmax import AdaptiveSoftmax
from weft.layers.outputs.base import OUTPUTS, Output, OutputConfig, TokenLoss
from weft.layers.outputs.factorised import Factorised
from weft.layers.outputs.linear import Linear
from weft.layers.outputs.mixture_of_softmaxes import MixtureOfSoftmaxes
from weft.layers.outputs.projected import ProjectedTable
from weft.layers.outputs.sparse import SparseLinear

__all__ = [
    "OUTPUTS",
    "AdaptiveSoftmax",
    "Factorised",
    "Linear",
    "MixtureOfSoftmaxes",
    "Output",
    "OutputConfig",
    "ProjectedTable",
    "SparseLinear",
    "TokenLoss",
]

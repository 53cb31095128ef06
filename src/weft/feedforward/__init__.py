"""Feed-forwards, one file per variant; importing this package registers all of them."""

from weft.feedforward.activations import two_thirds
from weft.feedforward.base import FEEDFORWARDS, FeedForward, FeedForwardConfig
from weft.feedforward.chunked import Chunked
from weft.feedforward.dense import Dense
from weft.feedforward.gate import Gate
from weft.feedforward.gshard import GShard
from weft.feedforward.moe import MixtureOfExperts
from weft.feedforward.product_key import ProductKey
from weft.feedforward.sparse import Sparse
from weft.feedforward.switch import Switch
from weft.feedforward.with_sru import WithSRU

__all__ = [
    "FEEDFORWARDS",
    "Chunked",
    "Dense",
    "FeedForward",
    "FeedForwardConfig",
    "GShard",
    "Gate",
    "MixtureOfExperts",
    "ProductKey",
    "Sparse",
    "Switch",
    "WithSRU",
    "two_thirds",
]

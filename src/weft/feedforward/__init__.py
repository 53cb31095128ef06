"""Feed-forwards, one file per variant; importing this package registers all of them."""

from weft.feedforward.base import FEEDFORWARDS, FeedForward
from weft.feedforward.dense import Dense

__all__ = ["FEEDFORWARDS", "Dense", "FeedForward"]

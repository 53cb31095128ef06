"""What `weft bench decode` times: a dense and a sparse model of equal size, or feed-forwards alone.

A whole model is timed with `timed` of its `layers`. The time of the layers is multiplied by
layers / timed; the time of the rest, mainly the output layer, is added once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from weft.errors import WeftError, at_least
from weft.feedforward import Dense
from weft.feedforward.sparse import Sparse
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack
from weft.models.presets import PRESETS, preset

PRECISIONS = ("float32", "bfloat16", "int8")
_AWAY = 1 << 29  # bytes of dense weights, more than any CPU cache holds
_FEW = 16  # tokens of a vocabulary whose output layer costs almost nothing
_NARROW = 32


@dataclass(frozen=True, kw_only=True)
class DecodeSetting:
    """Which models, in which precision, with how many tokens in the cache."""

    name: str  # of the preset, or of the part
    dense: Any  # configs, with `timed` layers
    sparse: Any
    layers: int  # of the whole model
    timed: int  # layers that are built
    part: str = "model"  # or "feedforward"
    weights: str = "float32"
    cache: str = "float32"
    output: str = "float32"
    context: int = 512  # tokens in the cache
    batch: int = 1
    rounds: int = 10

    def __post_init__(self) -> None:
        for name in ("weights", "cache", "output"):
            if getattr(self, name) not in PRECISIONS:
                known = ", ".join(PRECISIONS)
                raise WeftError(f"{name} is one of {known}; got {getattr(self, name)!r}")
        at_least(
            1,
            layers=self.layers,
            timed=self.timed,
            context=self.context,
            batch=self.batch,
            rounds=self.rounds,
        )
        if self.timed > self.layers:
            raise WeftError(
                f"of {self.layers} layers at most that many are timed; got {self.timed}"
            )

    @property
    def times(self) -> float:
        """The factor on the time of the timed layers."""
        return self.layers / self.timed


def preset_setting(
    name: str, *, timed: int | None = None, block: int = 64, head: str = "linear", **settings: Any
) -> DecodeSetting:
    """A preset and its dense twin; `head` is the output layer of both, "linear" or "sparse"."""
    trunk = preset(name).trunk
    assert isinstance(trunk, Decoder)
    layers = trunk.stack.order.count("s")
    dense = f"{name}_dense"
    if dense not in PRESETS:
        able = ", ".join(each for each in PRESETS if f"{each}_dense" in PRESETS)
        raise WeftError(f"{name} has no dense twin to compare it with; presets that have: {able}")
    return DecodeSetting(
        name=f"{name}(block={block}, output={head})",
        dense=preset(dense, layers=timed, output=head),
        sparse=preset(name, layers=timed, block=block, output=head),
        layers=layers,
        timed=timed or layers,
        **settings,
    )


def feedforward_setting(dim: int, block: int, **settings: Any) -> DecodeSetting:
    """Feed-forwards of 4·dim units, more than any CPU cache holds; times are of one.

    A model needs a mixer: one narrow attention layer comes first, and is not counted.
    """
    copies = max(1, ceil(_AWAY / (8 * dim * dim * 4)))

    def only(feedforward: Any) -> LanguageModel:
        frame = Frame(dim=dim, heads=1, head_dim=_NARROW)
        stack = Stack(frame=frame, order="s" + "f" * copies, feedforward=feedforward)
        return LanguageModel(trunk=Decoder(embedding=Embedding(vocab=_FEW), stack=stack))

    return DecodeSetting(
        name=f"feedforward(width={dim}, block={block})",
        dense=only(Dense(activation="relu")),
        sparse=only(Sparse(block=block)),
        layers=copies,
        timed=copies,
        part="feedforward",
        **settings,
    )

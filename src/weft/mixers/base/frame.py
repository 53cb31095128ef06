"""What describes a mechanism (`Traits`), and what surrounds it (`Frame`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from weft.config import config
from weft.errors import WeftError, at_least
from weft.layers.marks import Mark
from weft.layers.positions import PositionConfig
from weft.layers.projections.dense import DenseProjection, ProjectionConfig


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a mechanism is and can do; chooses its contract checks and writes the docs table."""

    family: str  # fixed pattern, learned pattern, low rank, feature map, synthesised, ...
    paper: str  # authors, year, address
    time: str  # per layer, in the letters of the shape legend
    memory: str  # working memory per layer, beyond the input
    # Numbers a decoder stores per layer and row, at most, as a formula that `check_state_formula`
    # evaluates (see `Mixer.letters`); None: cannot stream.
    state: str | None = None
    exact: bool = False  # equals dense attention under a pattern
    causal: bool = False  # can hide the future
    bidirectional: bool = True  # can read both ways
    cross: bool = False  # can read a context of another length
    compiles: bool = True  # torch.compile(fullgraph=True) works
    # What ranks exchange where they share a sequence (weft.scale.context); "": they cannot.
    context_parallel: str = ""
    marks: tuple[Mark, ...] = ()  # further tensors (b, n) that it takes, one value for each token
    note: str = ""  # the reason behind a False
    # Tensor parallel: "heads", where ranks may compute some of the heads each, or else why not.
    tensor: str = "heads"


if TYPE_CHECKING:

    class _Derived:
        """A field that may be given as None and is a number after `Frame.__post_init__`."""

        @overload
        def __get__(self, frame: None, owner: type[Any]) -> int | None: ...
        @overload
        def __get__(self, frame: Frame, owner: type[Any]) -> int: ...
        def __get__(self, frame: Frame | None, owner: type[Any]) -> int | None: ...
        def __set__(self, frame: Frame, value: int | None) -> None: ...


@config
class Frame:
    """What surrounds a mixer, the same for every mechanism: widths, heads, direction, positions."""

    dim: int
    heads: int = 8
    if TYPE_CHECKING:
        kv_heads: _Derived = _Derived()
        head_dim: _Derived = _Derived()
    else:
        kv_heads: int | None = None  # None: as many as heads
        head_dim: int | None = None  # None: dim / heads
    causal: bool = False
    length: int | None = None  # longest sequence, where parameters depend on it
    layer: int = 0  # which layer of the model, from 0: for settings that differ by layer
    positions: PositionConfig | None = None  # Rope(), "alibi", T5Bias()
    dropout: float = 0.0
    bias: bool = True
    seed: int = 0
    projection: ProjectionConfig = field(default_factory=DenseProjection)

    derives = ("head_dim", "kv_heads")

    def __post_init__(self) -> None:
        at_least(1, dim=self.dim, heads=self.heads)
        if self.head_dim is None:
            if self.dim % self.heads:
                raise WeftError(
                    f"dim is divided among the heads: dim={self.dim} is not a multiple of "
                    f"heads={self.heads}; give head_dim to choose the width of a head freely"
                )
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise WeftError(
                f"query heads share key heads evenly: heads={self.heads} is not a multiple of "
                f"kv_heads={self.kv_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise WeftError(f"dropout is in [0, 1); got {self.dropout}")

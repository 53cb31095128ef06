"""Patterns of pictures: positions are pixels in raster order, y = p // width, x = p % width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft.errors import WeftError, at_least
from weft.patterns.algebra import PATTERNS, Pattern
from weft.patterns.blocks import SameBlock
from weft.patterns.region import Bools, Coverage, Rectangle, Region
from weft.patterns.sequence import Dilated, Strided


class GridPattern(Pattern):
    """A pattern of a row condition and a column condition: both must hold."""

    width: int

    def along(self, axis: Literal["y", "x"]) -> Pattern:
        """The pattern of one axis."""
        raise NotImplementedError(f"{type(self).__name__} has to define along")

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        rows = self.along("y").sees(i // self.width, j // self.width)
        return rows & self.along("x").sees(i % self.width, j % self.width)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        shape = np.broadcast_shapes(rows.lo.shape, cols.lo.shape)
        some, every = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
        for a in rows.rectangles(self.width):
            for b in cols.rectangles(self.width):
                there: Bools = a.there & b.there
                one = self._rectangle(a, b)
                some, every = some | (one.some & there), every & (one.every | ~there)
        return Coverage(some, every)

    def _rectangle(self, a: Rectangle, b: Rectangle) -> Coverage:
        y = self.along("y").covers(Region(a.y0, a.y1), Region(b.y0, b.y1))
        x = self.along("x").covers(Region(a.x0, a.x1), Region(b.x0, b.x1))
        return Coverage(y.some & x.some, y.every & x.every)


@PATTERNS.register("window2d")
@dataclass(frozen=True)
class Window2d(GridPattern):
    """A square neighbourhood: |Δy| < window and |Δx| < window, steps of `dilation` pixels."""

    width: int
    window: int
    dilation: int = 1

    def __post_init__(self) -> None:
        at_least(1, width=self.width, window=self.window, dilation=self.dilation)

    def along(self, axis: Literal["y", "x"]) -> Pattern:
        return Dilated(self.window, self.dilation)


@PATTERNS.register("shifted_window")
@dataclass(frozen=True)
class ShiftedWindow(GridPattern):
    """Swin's windows: squares of `size` pixels, their corner moved by `shift`, no wrap-around."""

    width: int
    size: int = 7
    shift: int = 0

    def __post_init__(self) -> None:
        at_least(1, width=self.width, size=self.size)
        at_least(0, shift=self.shift)
        if self.shift >= self.size:
            raise WeftError(
                f"shift moves windows within their size: shift={self.shift} is not under "
                f"size={self.size}"
            )

    def along(self, axis: Literal["y", "x"]) -> Pattern:
        return OffsetBlock(self.size, self.shift)


@PATTERNS.register("offset_block")
@dataclass(frozen=True)
class OffsetBlock(Pattern):
    """Blocks with edges moved by `shift`, 1-D shifted windows: ⌊(i + shift) / block⌋ agrees."""

    block: int
    shift: int = 0

    def __post_init__(self) -> None:
        at_least(1, block=self.block)
        at_least(0, shift=self.shift)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return SameBlock(self.block).sees(i + self.shift, j + self.shift)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        rows = Region(rows.lo + self.shift, rows.hi + self.shift)
        cols = Region(cols.lo + self.shift, cols.hi + self.shift)
        return SameBlock(self.block).covers(rows, cols)


@PATTERNS.register("axis")
@dataclass(frozen=True)
class Axis(Pattern):
    """One line of a picture: the query's row (axis="x") or its column (axis="y")."""

    width: int
    axis: Literal["x", "y"] = "x"

    def __post_init__(self) -> None:
        at_least(1, width=self.width)
        if self.axis not in ("x", "y"):
            raise WeftError(f"axis is 'x' (along a row) or 'y' (along a column); got {self.axis!r}")

    @property
    def line(self) -> Pattern:
        """The same in one dimension: a row is a block, a column is a stride."""
        return SameBlock(self.width) if self.axis == "x" else Strided(self.width)

    @property
    def relative(self) -> bool:  # type: ignore[override]  # a ClassVar elsewhere
        return self.line.relative

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return self.line.sees(i, j)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        return self.line.covers(rows, cols)

    def every_nth(self, step: int) -> Pattern | None:
        return self.line.every_nth(step)

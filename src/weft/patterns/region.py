"""Sets of positions: the blocks on which patterns answer in closed form.

A region is the interval of positions lo..hi (both included), as numpy arrays, so that one call
answers for thousands of blocks. In an order made of picture tiles a region also knows its
rectangle, because a tile is not an interval of raster positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FAR = 1 << 40  # beyond any sequence: the end of an interval that is open to the right


class Coverage(NamedTuple):
    """What a pattern says of a block of queries × keys. Sound: an answer may only err this way:
    `some` may be True where no pair sees, `every` may be False where all do."""

    some: Bools
    every: Bools


class Rectangle(NamedTuple):
    """Rows y0..y1 and columns x0..x1, both included; `there` is False where it is empty."""

    y0: Ints
    y1: Ints
    x0: Ints
    x1: Ints
    there: Bools


@dataclass(frozen=True, eq=False)
class Region:
    """Positions lo..hi, or a tile of a picture whose positions lie in lo..hi."""

    lo: Ints
    hi: Ints
    tile: Rectangle | None = None

    @property
    def size(self) -> Ints:
        """How many positions an interval holds."""
        return self.hi - self.lo + 1

    def rectangles(self, width: int) -> list[Rectangle]:
        """The region as rectangles of a picture `width` pixels wide: at most three, exactly."""
        if self.tile is not None:
            return [self.tile]
        lo, hi = self.lo, self.hi
        top, bottom, left, right = lo // width, hi // width, lo % width, hi % width
        one_row, zero, edge = top == bottom, np.zeros_like(left), np.full_like(left, width - 1)
        first = Rectangle(top, top, left, np.where(one_row, right, edge), np.full(lo.shape, True))
        whole = Rectangle(top + 1, bottom - 1, zero, edge, bottom - top > 1)
        last = Rectangle(bottom, bottom, zero, right, ~one_row)
        return [first, whole, last]


def interval(lo: object, hi: object) -> Region:
    """A region from anything array-like."""
    return Region(np.asarray(lo, dtype=np.int64), np.asarray(hi, dtype=np.int64))


def multiple_within(lo: Ints, hi: Ints, step: int) -> Bools:
    """Whether lo..hi holds a multiple of `step`."""
    return (hi // step) * step >= lo

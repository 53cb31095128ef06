"""A picture whose positions run rectangle by rectangle, and a margin around each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import WeftError, at_least
from weft.patterns.algebra import PATTERNS, Pattern
from weft.patterns.region import Bools, Coverage, Ints, Rectangle, Region


@PATTERNS.register("rectangles")
@dataclass(frozen=True)
class Rectangles(Pattern):
    """A query reads its rectangle of pixels and a margin; positions run rectangle by rectangle.

    Rectangles of height × across pixels follow each other as words on a page, pixels inside one
    likewise. So a rectangle is a run of neighbouring positions.
    """

    width: int
    height: int = 8
    across: int = 16
    above: int = 0
    beside: int = 0
    below: int = 0

    def __post_init__(self) -> None:
        at_least(1, width=self.width, height=self.height, across=self.across)
        at_least(0, above=self.above, beside=self.beside, below=self.below)
        if self.width % self.across:
            raise WeftError(
                f"rectangles fill a row: width={self.width} is not a multiple of "
                f"across={self.across}"
            )

    def corner(self, position: Any) -> tuple[Any, Any]:
        """The first row and column of the rectangle that holds a position."""
        number, per_row = position // (self.height * self.across), self.width // self.across
        return number // per_row * self.height, number % per_row * self.across

    def pixel(self, position: Any) -> tuple[Any, Any]:
        """The row and column of a position."""
        top, left = self.corner(position)
        inside = position % (self.height * self.across)
        return top + inside // self.across, left + inside % self.across

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        (top, left), (y, x) = self.corner(i), self.pixel(j)
        rows = (y >= top - self.above) & (y < top + self.height + self.below)
        return rows & (x >= left - self.beside) & (x < left + self.across + self.beside)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        shape = np.broadcast_shapes(rows.lo.shape, cols.lo.shape)
        some, every = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
        size = self.height * self.across
        queries = self._whole(rows.lo // size, rows.hi // size)
        for a in queries:
            for b in self._pixels(cols.lo, cols.hi):
                there: Bools = a.there & b.there
                one = self._pair(a, b)
                some, every = some | (one.some & there), every & (one.every | ~there)
        return Coverage(some, every)

    def _pair(self, query: Rectangle, key: Rectangle) -> Coverage:
        """Whole rectangles of queries, any pixels of keys."""
        some = (key.y1 >= query.y0 - self.above) & (key.y0 <= query.y1 + self.below)
        some &= (key.x1 >= query.x0 - self.beside) & (key.x0 <= query.x1 + self.beside)
        # What the first and the last rectangle of queries read, all between them read.
        every = (key.y0 > query.y1 - self.height - self.above) & (
            key.y1 < query.y0 + self.height + self.below
        )
        every &= key.x0 > query.x1 - self.across - self.beside
        every &= key.x1 < query.x0 + self.across + self.beside
        return Coverage(some, every)

    def _whole(self, first: Ints, last: Ints) -> list[Rectangle]:
        """The pixels of the rectangles with these numbers."""
        h, w = self.height, self.across
        return [
            Rectangle(r.y0 * h, r.y1 * h + h - 1, r.x0 * w, r.x1 * w + w - 1, r.there)
            for r in Region(first, last).rectangles(self.width // w)
        ]

    def _pixels(self, lo: Ints, hi: Ints) -> list[Rectangle]:
        """Positions lo..hi: part of a first rectangle, whole ones, part of a last one."""
        size = self.height * self.across
        first, last = lo // size, hi // size
        ends = np.where(first == last, hi, first * size + size - 1)
        between = self._whole(first + 1, np.maximum(last - 1, first + 1))
        inner = [r._replace(there=r.there & (last - first > 1)) for r in between]
        after = [r._replace(there=r.there & (last > first)) for r in self._part(last * size, hi)]
        return [*self._part(lo, ends), *inner, *after]

    def _part(self, lo: Ints, hi: Ints) -> list[Rectangle]:
        """Positions of one rectangle."""
        top, left = self.corner(lo)
        size = self.height * self.across
        return [
            Rectangle(r.y0 + top, r.y1 + top, r.x0 + left, r.x1 + left, r.there)
            for r in Region(lo % size, hi % size).rectangles(self.across)
        ]

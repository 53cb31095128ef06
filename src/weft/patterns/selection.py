"""Patterns that select tokens: columns, sinks, global tokens.

`Keys` is read by every query; `Queries` reads every key; `Global` is both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import Unsupported, WeftError, at_least
from weft.patterns.algebra import PATTERNS, Pattern
from weft.patterns.region import Bools, Coverage, Ints, Region


@PATTERNS.register("columns")
@dataclass(frozen=True)
class Columns(Pattern):
    """Every query reads the last `width` positions of each stretch of `stride` positions."""

    stride: int
    width: int = 1

    def __post_init__(self) -> None:
        at_least(1, stride=self.stride, width=self.width)
        if self.width > self.stride:
            raise WeftError(
                f"columns of width={self.width} do not fit a stride of {self.stride}; "
                "width is at most stride"
            )

    def positions(self, length: int) -> Ints:
        """The key positions that are read."""
        every = np.arange(length)
        return every[self.sees(every, every)]

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return (j % self.stride >= self.stride - self.width) & (i == i)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        count = self._before(cols.hi + 1) - self._before(cols.lo)
        anywhere = np.full(np.broadcast_shapes(rows.lo.shape, cols.lo.shape), True)
        return Coverage(anywhere & (count > 0), anywhere & (count == cols.size))

    def count(self, length: int) -> int:
        """How many keys are read."""
        return int(self._before(np.int64(length)))

    def _before(self, position: Any) -> Any:
        """How many columns come before a position."""
        whole, rest = position // self.stride, position % self.stride
        return whole * self.width + np.maximum(rest - (self.stride - self.width), 0)


@dataclass(frozen=True)
class _Chosen(Pattern):
    """A set of tokens: the first, the last and given positions."""

    first: int = 0
    last: int = 0
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        at_least(0, first=self.first, last=self.last, **{f"at[{p}]": p for p in self.at})
        if not (self.first or self.last or self.at):
            raise WeftError(f"{self.name} needs first, last or at: which tokens are meant?")
        object.__setattr__(self, "at", tuple(sorted(set(self.at))))

    @property
    def needs_length(self) -> bool:  # type: ignore[override]  # a ClassVar elsewhere
        return self.last > 0

    def positions(self, length: int) -> Ints:
        """The chosen positions of a sequence, in order."""
        spans = zip(*self.spans(length), strict=True)
        pieces = [np.arange(start, min(end + 1, length)) for start, end in spans]
        return np.concatenate(pieces)

    def chosen(self, x: Any, length: int | None) -> Any:
        """Whether each position is in the set."""
        inside = x < self.first
        if self.last:
            inside = inside | (x >= self._known(length) - self.last)
        for start, end in self._given:
            inside = inside | ((x >= start) & (x <= end))
        return inside

    def spans(self, length: int | None) -> tuple[Ints, Ints]:
        """The set as disjoint, separated intervals: their first and last positions, in order."""
        pieces = list(self._given)
        if self.first:
            pieces.append((0, self.first - 1))
        if self.last:
            pieces.append((max(0, self._known(length) - self.last), self._known(length) - 1))
        starts, ends = zip(*_merged(pieces), strict=True)
        return np.asarray(starts), np.asarray(ends)

    @property
    def _given(self) -> list[tuple[int, int]]:
        """The given positions as intervals."""
        return _merged([(p, p) for p in self.at])

    def contains(self, region: Region, length: int | None) -> tuple[Bools, Bools]:
        """Whether a region holds some and only chosen positions."""
        starts, ends = self.spans(length)
        # The last span that starts within the region or before it.
        last = np.searchsorted(starts, region.hi, side="right") - 1
        some = (last >= 0) & (ends[last] >= region.lo)
        return some, some & (starts[last] <= region.lo) & (ends[last] >= region.hi)

    def _known(self, length: int | None) -> int:
        if length is None:
            raise Unsupported(
                f"{self} counts from the end, so it needs the final length; it cannot decode"
            )
        return length


def _merged(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals in order, those that touch joined."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


@PATTERNS.register("keys")
@dataclass(frozen=True)
class Keys(_Chosen):
    """Every query reads the chosen keys."""

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return self.chosen(j, length) & (i == i)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        some, every = self.contains(cols, length)
        shape = np.broadcast_shapes(rows.lo.shape, cols.lo.shape)
        return Coverage(np.broadcast_to(some, shape), np.broadcast_to(every, shape))


@PATTERNS.register("queries")
@dataclass(frozen=True)
class Queries(_Chosen):
    """The chosen queries read every key."""

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return self.chosen(i, length) & (j == j)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        some, every = self.contains(rows, length)
        shape = np.broadcast_shapes(rows.lo.shape, cols.lo.shape)
        return Coverage(np.broadcast_to(some, shape), np.broadcast_to(every, shape))


@PATTERNS.register("global")
@dataclass(frozen=True)
class Global(_Chosen):
    """The chosen tokens read everything and are read by everything."""

    @property
    def halves(self) -> tuple[Queries, Keys]:
        """Its two sides: who reads all, and who is read by all."""
        return Queries(self.first, self.last, self.at), Keys(self.first, self.last, self.at)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return self.chosen(i, length) | self.chosen(j, length)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        some_i, every_i = self.contains(rows, length)
        some_j, every_j = self.contains(cols, length)
        return Coverage(some_i | some_j, every_i | every_j)


@PATTERNS.register("sink")
@dataclass(frozen=True)
class Sink(Keys):
    """Every query reads the first tokens, where streaming models park their attention."""

    first: int = 4

"""Patterns of distance in a sequence: full, causal, sliding, dilated, strided.

**Window**, defined here once for all of weft: `window` is how far a token reads in one direction,
counted in tokens, itself included: |i − j| < window. Window 1 reads itself alone; causal, a window
of w reads exactly w tokens; in both directions it reads 2w − 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from weft.errors import at_least
from weft.patterns.algebra import PATTERNS, Pattern
from weft.patterns.region import Coverage, Ints, Region, multiple_within


def distances(rows: Region, cols: Region) -> tuple[Ints, Ints]:
    """The least and greatest i − j of a block; every distance between them occurs."""
    return rows.lo - cols.hi, rows.hi - cols.lo


@PATTERNS.register("full")
@dataclass(frozen=True)
class Full(Pattern):
    """Every query reads every key."""

    relative = True
    everything = True

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return (i == i) & (j == j)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        yes = np.full(np.broadcast_shapes(rows.lo.shape, cols.lo.shape), True)
        return Coverage(yes, yes)

    def every_nth(self, step: int) -> Pattern:
        return self


@PATTERNS.register("causal")
@dataclass(frozen=True)
class Causal(Pattern):
    """A query reads itself and what came before: j ≤ i."""

    relative = True
    causal = True

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return j <= i

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        least, greatest = distances(rows, cols)
        return Coverage(greatest >= 0, least >= 0)

    def every_nth(self, step: int) -> Pattern:
        return self


@PATTERNS.register("sliding")
@dataclass(frozen=True)
class Sliding(Pattern):
    """A query reads its neighbours: |i − j| < window."""

    window: int
    relative = True

    def __post_init__(self) -> None:
        at_least(1, window=self.window)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return abs(i - j) < self.window

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        least, greatest = distances(rows, cols)
        some = (least < self.window) & (greatest > -self.window)
        return Coverage(some, (greatest < self.window) & (least > -self.window))

    def every_nth(self, step: int) -> Pattern:
        return Sliding(-(-self.window // step))


@PATTERNS.register("dilated")
@dataclass(frozen=True)
class Dilated(Pattern):
    """A window with gaps: i − j = dilation·t with |t| < window."""

    window: int
    dilation: int
    relative = True

    def __post_init__(self) -> None:
        at_least(1, window=self.window, dilation=self.dilation)

    @property
    def reach(self) -> int:
        """The greatest distance read."""
        return (self.window - 1) * self.dilation

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return (abs(i - j) <= self.reach) & ((i - j) % self.dilation == 0)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        least, greatest = distances(rows, cols)
        low, high = np.maximum(least, -self.reach), np.minimum(greatest, self.reach)
        some = (low <= high) & multiple_within(low, high, self.dilation)
        one_kind = (least == greatest) | (self.dilation == 1)
        return Coverage(some, some & one_kind & (low == least) & (high == greatest))

    def every_nth(self, step: int) -> Pattern:
        shared = gcd(step, self.dilation)
        return Dilated(-(-self.window * shared // step), self.dilation // shared)


@PATTERNS.register("strided")
@dataclass(frozen=True)
class Strided(Pattern):
    """A query reads every stride-th position counted from itself: (i − j) mod stride = 0."""

    stride: int
    relative = True

    def __post_init__(self) -> None:
        at_least(1, stride=self.stride)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return (i - j) % self.stride == 0

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        least, greatest = distances(rows, cols)
        some = multiple_within(least, greatest, self.stride)
        return Coverage(some, some & ((least == greatest) | (self.stride == 1)))

    def every_nth(self, step: int) -> Pattern:
        left = self.stride // gcd(step, self.stride)
        return Full() if left == 1 else Strided(left)

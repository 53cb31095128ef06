"""A user's own predicate: any function of i and j is a pattern; blocks are found by evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import Unsupported
from weft.patterns.algebra import Pattern
from weft.patterns.region import Coverage, Region

# Larger regions are not evaluated pair by pair: the layout evaluates their parts.
EVALUATED = 256


@dataclass(frozen=True)
class Predicate(Pattern):
    """Query i reads key j where `test(i, j)` says so; `test` sees broadcastable integer tensors.

    Use operators that numpy and torch share: `Predicate(lambda i, j: (i ^ j) < 64)`.
    """

    test: Callable[[Any, Any], Any]
    label: str = "predicate"

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return self.test(i, j)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        i0, i1, j0, j1 = np.broadcast_arrays(rows.lo, rows.hi, cols.lo, cols.hi)
        shape = i0.shape
        some, every = np.ones(i0.size, dtype=bool), np.zeros(i0.size, dtype=bool)
        corners = (i0.ravel(), i1.ravel(), j0.ravel(), j1.ravel())
        for at, (a, b, x, y) in enumerate(zip(*corners, strict=True)):
            if max(b - a, y - x) < EVALUATED:
                seen = self.test(np.arange(a, b + 1)[:, None], np.arange(x, y + 1)[None, :])
                some[at], every[at] = np.any(seen), np.all(seen)
        return Coverage(some.reshape(shape), every.reshape(shape))

    @property
    def spec(self) -> str:
        raise Unsupported(
            f"{self.label} is a Python function, which has no text form and so no key; where one "
            "is needed, write a Pattern class and register it with PATTERNS.register"
        )

    def __str__(self) -> str:
        return self.label

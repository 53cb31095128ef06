"""Block layouts: which blocks of queries × keys hold something to see, and which hold only that.

The block calculus answers for regions of any size, so the layout is found by descent: evaluate
large squares first and look only inside those that may hold something. The cost follows the number
of visible blocks, not (n / block)²: milliseconds where evaluating the pattern takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.patterns.algebra import Pattern
from weft.patterns.closed_forms import computed_in_closed_form
from weft.patterns.order import Order
from weft.patterns.region import Bools, Ints

_BRANCH = 8  # a square splits into 8 × 8
_TOP = 64  # the first squares: at most 64 a side
_MOST_SQUARES = 36_000_000  # looked at in one step: about 2 GiB; causal at 2^20 tokens fits


class TooManyBlocks(WeftError):
    """A layout would fill the memory with its list of blocks."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Visible blocks, row by row: of row u, cols[start[u]:start[u + 1]], `full` where all see."""

    block: int
    queries: int
    keys: int
    start: Ints  # (rows + 1,)
    cols: NDArray[np.int32]  # (visible,)
    full: Bools  # (visible,)

    @property
    def rows(self) -> int:
        """Blocks of queries."""
        return len(self.start) - 1

    @property
    def columns(self) -> int:
        """Blocks of keys."""
        return -(-self.keys // self.block)

    @property
    def row_of(self) -> Ints:
        """The row of each visible block."""
        return np.repeat(np.arange(self.rows), np.diff(self.start))

    @property
    def computed_pairs(self) -> int:
        """Pairs in the visible blocks, seen or not."""
        high = np.minimum(self.queries - self.row_of * self.block, self.block)
        wide = np.minimum(self.keys - self.cols.astype(np.int64) * self.block, self.block)
        return int((high * wide).sum())

    @property
    def longest_row(self) -> int:
        """The most visible blocks in one row."""
        return int(np.diff(self.start).max(initial=0))

    def dense(self) -> tuple[Bools, Bools]:
        """Booleans (rows, columns): blocks with something to see, and full ones."""
        some, every = np.zeros((2, self.rows, self.columns), dtype=bool)
        some[self.row_of, self.cols] = True
        every[self.row_of[self.full], self.cols[self.full]] = True
        return some, every


@lru_cache(maxsize=128)
def layout(pattern: Pattern, rows: Order, cols: Order, length: int, block: int) -> Layout:
    """The layout of a pattern over queries and keys in these orders."""
    _refuse_long_lists(pattern, rows, cols, length, block)
    u, v, full = _descend(pattern, rows, cols, length, block)
    order = np.lexsort((v, u))
    u, v, full = u[order], v[order], full[order]
    start = np.searchsorted(u, np.arange(-(-rows.count // block) + 1))
    return Layout(block, rows.count, cols.count, start, v.astype(np.int32), full)


def _refuse_long_lists(pattern: Pattern, rows: Order, cols: Order, length: int, block: int) -> None:
    """Before any memory is taken, where blocks are counted without a list."""
    size = block**2
    plain = type(rows) is Order and type(cols) is Order
    if not plain or rows.count * cols.count <= _MOST_SQUARES * size:
        return
    spans = ((x.start, x.count) for x in (rows, cols))
    computed = computed_in_closed_form(pattern, *spans, length, block)
    if computed is not None and computed > _MOST_SQUARES * size:
        raise _too_many(pattern, rows, cols, computed // size, block)


def _too_many(pattern: Pattern, rows: Order, cols: Order, count: int, size: int) -> TooManyBlocks:
    return TooManyBlocks(
        f"{pattern} over {rows.count:,} queries and {cols.count:,} keys is a list of about "
        f"{count:,} blocks of {size}; at most {_MOST_SQUARES:,} are listed: "
        "give a shorter length or larger blocks"
    )


def _descend(
    pattern: Pattern, rows: Order, cols: Order, length: int, block: int
) -> tuple[Ints, Ints, Bools]:
    size = block
    if rows.hierarchical and cols.hierarchical:
        while max(rows.count, cols.count) > size * _TOP:
            size *= _BRANCH
    high, wide = -(-rows.count // size), -(-cols.count // size)
    u, v = (x.ravel() for x in np.indices((high, wide)))
    u, v, full = _look(pattern, rows, cols, length, size, u, v, np.zeros(u.shape, dtype=bool))
    while size > block:
        size //= _BRANCH
        if len(u) * _BRANCH**2 > _MOST_SQUARES:
            raise _too_many(pattern, rows, cols, len(u) * _BRANCH**2, size)
        step = np.arange(_BRANCH)
        u = np.repeat(u, _BRANCH**2) * _BRANCH + np.tile(np.repeat(step, _BRANCH), len(u))
        v = np.repeat(v, _BRANCH**2) * _BRANCH + np.tile(step, len(v) * _BRANCH)
        full = np.repeat(full, _BRANCH**2)
        there = (u * size < rows.count) & (v * size < cols.count)
        u, v, full = _look(pattern, rows, cols, length, size, u[there], v[there], full[there])
    return u, v, full


def _look(
    pattern: Pattern,
    rows: Order,
    cols: Order,
    length: int,
    size: int,
    u: Ints,
    v: Ints,
    full: Bools,
) -> tuple[Ints, Ints, Bools]:
    """Keep the squares with something to see; those known to be full are not refined."""
    ask = ~full
    some = np.ones(u.shape, dtype=bool)
    answer = pattern.covers(rows.region(u[ask], size), cols.region(v[ask], size), length)
    some[ask], full[ask] = answer.some, answer.every & answer.some
    return u[some], v[some], full[some]

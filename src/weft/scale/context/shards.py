"""Which positions of a sequence each rank holds, and what each reads of the others.

    pieces      a rank holds one run of the sequence, or a head and a tail run (for causal patterns:
                rank r then has as many visible pairs as any other)
    reads       which keys some query of a rank may read: the block calculus, asked for single keys
    wide rows   queries that read everything, such as global ones: their keys stay where they are,
                the queries go round, and partial results are joined by their log-sum-exp

All of it is numbers, known before anything runs; ranks of a group compute the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from weft.errors import WeftError
from weft.patterns import Pattern, Queries
from weft.patterns.lower import branches, conjuncts
from weft.patterns.region import Bools, Coverage, Ints, Region, interval

Balance = Literal["none", "head_tail"]

_ROW_AND_RESULT = 3  # a wide row travels as a query, and comes back as values and their sums
_MOST_BRANCHES = 64


@dataclass(frozen=True)
class Shards:
    """A sequence of `length` tokens over `ranks` processes; runs differ by a token at most."""

    length: int
    ranks: int
    balance: Balance = "none"  # head_tail: a run from the front and one from the back each

    def __post_init__(self) -> None:
        if self.balance not in ("none", "head_tail"):
            raise WeftError(f"balance is 'none' or 'head_tail'; got {self.balance!r}")
        if self.ranks < 1:
            raise WeftError(f"a sequence is split over 1 rank or more; got ranks={self.ranks}")
        if self.length < self.runs:
            raise WeftError(
                f"each rank holds a token or more: {self.length} tokens are too few for "
                f"{self.ranks} ranks (balance={self.balance!r}); use at most "
                f"{max(1, self.length * self.ranks // self.runs)} ranks"
            )

    @property
    def runs(self) -> int:
        """How many runs the sequence is cut into."""
        return self.ranks * (2 if self.balance == "head_tail" else 1)

    @cached_property
    def edges(self) -> Ints:
        """Where runs begin, and the end: (runs + 1,)."""
        each, more = divmod(self.length, self.runs)
        run = np.arange(self.runs + 1)
        return run * each + np.minimum(run, more)

    @property
    def contiguous(self) -> bool:
        """Whether each rank holds one run, in the order of the ranks."""
        return self.balance == "none"

    def runs_of(self, rank: int) -> tuple[int, ...]:
        """The runs of a rank."""
        return (rank,) if self.contiguous else (rank, self.runs - 1 - rank)

    def pieces(self, rank: int) -> list[tuple[int, int]]:
        """First position and end of each run of a rank."""
        return [(int(self.edges[a]), int(self.edges[a + 1])) for a in self.runs_of(rank)]

    def positions(self, rank: int) -> Ints:
        """The positions that a rank holds, ascending."""
        return np.concatenate([np.arange(start, end) for start, end in self.pieces(rank)])

    def start(self, rank: int) -> int:
        """The first position of a rank."""
        return self.pieces(rank)[0][0]

    def count(self, rank: int) -> int:
        """How many positions a rank holds."""
        return sum(end - start for start, end in self.pieces(rank))

    @cached_property
    def size(self) -> int:
        """Places on each rank: the most that any holds; others have padding at the end."""
        return max(self.count(rank) for rank in range(self.ranks))

    def owners(self, positions: Ints) -> Ints:
        """The rank that holds each position."""
        run = np.searchsorted(self.edges, positions, side="right") - 1
        return np.where(run < self.ranks, run, self.runs - 1 - run)

    def places(self, positions: Ints, rank: int) -> Ints:
        """Where positions of a rank stand in its shard."""
        return np.searchsorted(self.positions(rank), positions)


@dataclass(frozen=True, eq=False)
class KeyPlan:
    """What each rank reads under one pattern."""

    shards: Shards
    wide: Ints  # queries that go round instead of their keys
    needs: tuple[Ints, ...]  # keys that each rank fetches, ascending: none of its own

    @cached_property
    def counts(self) -> Ints:
        """Keys sent from each rank to each: (from, to)."""
        found = np.zeros((self.shards.ranks, self.shards.ranks), dtype=np.int64)
        for rank, keys in enumerate(self.needs):
            found[:, rank] = np.bincount(self.shards.owners(keys), minlength=self.shards.ranks)
        return found

    @cached_property
    def by_holder(self) -> tuple[tuple[Ints, ...], ...]:
        """The same by reader and holder; of itself a rank holds all of its keys."""
        ranks = range(self.shards.ranks)
        found = []
        for reader, keys in enumerate(self.needs):
            owner = self.shards.owners(keys)
            parts = [keys[owner == holder] for holder in ranks]
            parts[reader] = self.shards.positions(reader)
            found.append(tuple(parts))
        return tuple(found)

    @cached_property
    def turns(self) -> bool:
        """Whether keys are fetched rank by rank: where some rank would fetch over a shard."""
        return max(map(len, self.needs)) > self.shards.size

    @cached_property
    def wide_of(self) -> tuple[Ints, ...]:
        """The wide queries of each rank."""
        owner = self.shards.owners(self.wide)
        return tuple(self.wide[owner == rank] for rank in range(self.shards.ranks))


@lru_cache(maxsize=256)
def reading(pattern: Pattern, shards: Shards) -> KeyPlan:
    """The cheaper of two ways: wide rows fetch their keys, or go round."""
    none = np.zeros(0, dtype=np.int64)
    plain = _reading(pattern, shards, none)
    wide = wide_rows(pattern, shards.length)
    if not len(wide):
        return plain
    apart = _reading(pattern, shards, wide)
    travel = _ROW_AND_RESULT * len(wide) * (shards.ranks - 1)
    saved = sum(map(len, plain.needs)) - sum(map(len, apart.needs))
    return apart if travel < 2 * saved else plain


def _reading(pattern: Pattern, shards: Shards, wide: Ints) -> KeyPlan:
    needs = []
    for rank in range(shards.ranks):
        rows = np.setdiff1d(shards.positions(rank), wide, assume_unique=True)
        seen = reads(pattern, rows, shards.length)
        seen[shards.positions(rank)] = False
        needs.append(np.flatnonzero(seen))
    return KeyPlan(shards, wide, tuple(needs))


def reads(pattern: Pattern, rows: Ints, length: int) -> Bools:
    """Which of `length` keys some of these ascending rows may read."""
    keys, seen = np.arange(length), np.zeros(length, dtype=bool)
    for first, last in spans(rows):
        some = pattern.covers(interval(first, last), interval(keys, keys), length).some
        seen |= np.broadcast_to(some, keys.shape)
    return seen


def spans(positions: Ints) -> list[tuple[int, int]]:
    """Ascending positions as runs: the first and the last of each."""
    if not len(positions):
        return []
    cuts = np.flatnonzero(np.diff(positions) > 1) + 1
    edges = [0, *cuts.tolist(), len(positions)]
    return [(int(positions[a]), int(positions[b - 1])) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Within(Pattern):
    """A pattern over the first `length` positions of a longer sequence; no others read."""

    inner: Pattern
    tokens: int

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        inside, last = (i < self.tokens) & (j < self.tokens), self.tokens - 1
        return self.inner.sees(_at_most(i, last), _at_most(j, last), self.tokens) & inside

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        last = self.tokens - 1
        own = Region(np.minimum(rows.lo, last), np.minimum(rows.hi, last))
        keys = Region(np.minimum(cols.lo, last), np.minimum(cols.hi, last))
        some, every = self.inner.covers(own, keys, self.tokens)
        inside = (rows.lo <= last) & (cols.lo <= last)
        return Coverage(some & inside, every & (rows.hi <= last) & (cols.hi <= last))

    def head(self, index: int, heads: int) -> Pattern:
        return Within(self.inner.head(index, heads), self.tokens)


def _at_most(x: Any, last: int) -> Any:
    return x.clip(None, last) if isinstance(x, np.ndarray) else x.clamp(max=last)


def wide_rows(pattern: Pattern, length: int) -> Ints:
    """The queries that a branch of the pattern chooses to read all, or nearly all, keys."""
    if isinstance(pattern, Within):
        return wide_rows(pattern.inner, pattern.tokens)
    every = branches(pattern)
    if len(every) > _MOST_BRANCHES:
        return np.zeros(0, dtype=np.int64)
    sets = [c.positions(length) for b in every for c in conjuncts(b) if isinstance(c, Queries)]
    return reduce(np.union1d, sets, np.zeros(0, dtype=np.int64))

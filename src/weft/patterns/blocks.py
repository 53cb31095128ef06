"""Patterns of blocks: same block, neighbouring blocks, random blocks, packed documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from weft.errors import Unsupported, WeftError, at_least
from weft.patterns.algebra import PATTERNS, Pattern
from weft.patterns.region import Bools, Coverage, Ints, Region
from weft.patterns.tables import on_device

# Beyond this many blocks a table of all pairs of blocks would take too much memory.
PAIR_TABLE_LIMIT = 4096


@PATTERNS.register("same_block")
@dataclass(frozen=True)
class SameBlock(Pattern):
    """A query reads its own block: ⌊i / block⌋ = ⌊j / block⌋."""

    block: int

    def __post_init__(self) -> None:
        at_least(1, block=self.block)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return i // self.block == j // self.block

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        return _neighbours(rows, cols, self.block, before=0, after=0)

    def every_nth(self, step: int) -> Pattern | None:
        return SameBlock(self.block // step) if self.block % step == 0 else None


@PATTERNS.register("block_neighbours")
@dataclass(frozen=True)
class BlockNeighbours(Pattern):
    """A query reads its block, `before` blocks to the left and `after` blocks to the right."""

    block: int
    before: int = 1
    after: int = 1

    def __post_init__(self) -> None:
        at_least(1, block=self.block)
        at_least(0, before=self.before, after=self.after)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        distance = i // self.block - j // self.block
        return (distance <= self.before) & (distance >= -self.after)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        return _neighbours(rows, cols, self.block, self.before, self.after)

    def every_nth(self, step: int) -> Pattern | None:
        if self.block % step:
            return None
        return BlockNeighbours(self.block // step, self.before, self.after)


@PATTERNS.register("blocked")
@dataclass(frozen=True)
class Blocked(Pattern):
    """A pattern of whole blocks: block ⌊i / block⌋ reads block ⌊j / block⌋ as `inner` says.

    With tokens in an order in which a block is a tile of a picture, `blocked(window2d(8, 2), 128)`
    is a neighbourhood of 3×3 tiles, eight tiles to a row, without a single partly visible block.
    """

    inner: Pattern
    block: int

    def __post_init__(self) -> None:
        at_least(1, block=self.block)

    @property
    def needs_length(self) -> bool:  # type: ignore[override]  # a ClassVar elsewhere
        return self.inner.needs_length

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return self.inner.sees(i // self.block, j // self.block, self._blocks(length))

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        rows = Region(rows.lo // self.block, rows.hi // self.block)
        cols = Region(cols.lo // self.block, cols.hi // self.block)
        return self.inner.covers(rows, cols, self._blocks(length))

    def _blocks(self, length: int | None) -> int | None:
        return None if length is None else -(-length // self.block)


def _neighbours(rows: Region, cols: Region, block: int, before: int, after: int) -> Coverage:
    least = rows.lo // block - cols.hi // block
    greatest = rows.hi // block - cols.lo // block
    some = (least <= before) & (greatest >= -after)
    return Coverage(some, (greatest <= before) & (least >= -after))


@PATTERNS.register("random_blocks")
@dataclass(frozen=True)
class RandomBlocks(Pattern):
    """Each block of queries reads `count` blocks of keys drawn at random, distinct.

    The draw depends on the seed and the number of blocks alone: the same on every device, in
    training and in evaluation. With `past`, block u draws from the blocks before it, and depends
    on the seed and u alone. Blocks within `spare` of the query's own, the first and the last are
    not drawn when `spare` is given: another part of the pattern reads them already.
    """

    count: int
    block: int = 64
    seed: int = 0
    spare: int | None = None
    past: bool = False

    def __post_init__(self) -> None:
        at_least(1, count=self.count, block=self.block)
        at_least(0, seed=self.seed)

    @property
    def needs_length(self) -> bool:  # type: ignore[override]  # a ClassVar elsewhere
        return not self.past

    def table(self, length: int | None) -> Ints:
        """The key blocks that each query block reads: (blocks, count), −1 where none is left."""
        if length is None:
            raise Unsupported(
                "random_blocks draws from all blocks: it needs the final length and cannot decode; "
                "past=true draws from earlier blocks and can"
            )
        return _draw(self, -(-length // self.block))

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        if length is None and self.past:
            length = int(i.max()) + 1
        table = on_device(self.table(length), i)
        return _drawn(table, i // self.block, j // self.block)

    def bind(self, length: int, device: Any) -> Callable[[Any, Any], Any]:
        table = torch.as_tensor(self.table(length), device=device)
        return lambda i, j: _drawn(table, i // self.block, j // self.block)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        if length is None and self.past:  # decoding: a later block may draw any earlier one
            yes = np.full(np.broadcast_shapes(rows.lo.shape, cols.lo.shape), True)
            return Coverage(yes, ~yes)
        table = self.table(length)
        u0, u1 = rows.lo // self.block, rows.hi // self.block
        v0, v1 = cols.lo // self.block, cols.hi // self.block
        if len(table) <= PAIR_TABLE_LIMIT:
            sums = _pair_sums(self, len(table))
            area = (u1 - u0 + 1) * (v1 - v0 + 1)
            hits = sums[u1 + 1, v1 + 1] - sums[u0, v1 + 1] - sums[u1 + 1, v0] + sums[u0, v0]
            return Coverage(hits > 0, hits == area)
        return self._covers_by_rows(table, u0, u1, v0, v1)

    def _covers_by_rows(self, table: Ints, u0: Ints, u1: Ints, v0: Ints, v1: Ints) -> Coverage:
        u0, u1, v0, v1 = np.broadcast_arrays(u0, u1, v0, v1)
        some = np.zeros(u0.shape, dtype=bool)
        for ahead in range(4):  # a block of the layout spans few blocks of ours
            row = u0 + ahead
            drawn = table[np.minimum(row, len(table) - 1)]
            hit = ((drawn >= v0[..., None]) & (drawn <= v1[..., None])).any(-1)
            some |= hit & (row <= u1)
        return Coverage(some | (u1 - u0 > 3), np.zeros(u0.shape, dtype=bool))


def _drawn(table: Any, u: Any, v: Any) -> Any:
    """Whether block v is among the draws of block u."""
    hit = table[u, 0] == v
    for a in range(1, table.shape[1]):
        hit = hit | (table[u, a] == v)
    return hit


@lru_cache(maxsize=32)
def _draw(pattern: RandomBlocks, blocks: int) -> Ints:
    rng = np.random.default_rng([pattern.seed, blocks])
    table = np.full((blocks, pattern.count), -1, dtype=np.int64)
    every = np.arange(blocks)
    for u in range(blocks):
        free = every
        if pattern.past:
            rng, free = np.random.default_rng([pattern.seed, u]), every[:u]
        if pattern.spare is not None:
            free = free[(abs(free - u) > pattern.spare) & (free > 0)]
            free = free if pattern.past else free[free < blocks - 1]
        drawn = rng.choice(free, min(pattern.count, len(free)), replace=False)
        table[u, : len(drawn)] = np.sort(drawn)
    return table


@lru_cache(maxsize=4)
def _pair_sums(pattern: RandomBlocks, blocks: int) -> Ints:
    """Two-dimensional prefix sums over the pairs of blocks that see each other."""
    table = _draw(pattern, blocks)
    pairs = np.zeros((blocks + 1, blocks + 1), dtype=np.int32)
    u, a = np.nonzero(table >= 0)
    pairs[u + 1, table[u, a] + 1] = 1
    return pairs.cumsum(0).cumsum(1)


@PATTERNS.register("segments")
@dataclass(frozen=True)
class Segments(Pattern):
    """Documents packed one after another in a row: a query reads its own document."""

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.lengths:
            raise WeftError("segments needs the length of one document or more; got none")
        for length in self.lengths:
            at_least(1, lengths=length)
        object.__setattr__(self, "lengths", tuple(self.lengths))

    def _fits(self, length: int | None) -> None:
        if length is not None and length > sum(self.lengths):
            raise WeftError(
                f"segments of {sum(self.lengths)} tokens in all do not fill a row of {length}; "
                "give the padding at the end a segment of its own"
            )

    def ids(self) -> Ints:
        """The document of each position."""
        return _ids(self)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        self._fits(length)
        ids = on_device(self.ids(), i)
        return ids[i] == ids[j]

    def bind(self, length: int, device: Any) -> Callable[[Any, Any], Any]:
        ids = torch.as_tensor(self.ids(), device=device)
        return lambda i, j: ids[i] == ids[j]

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        self._fits(length)
        ends = np.cumsum(self.lengths)[:-1]
        first_i, last_i = (np.searchsorted(ends, x, side="right") for x in (rows.lo, rows.hi))
        first_j, last_j = (np.searchsorted(ends, x, side="right") for x in (cols.lo, cols.hi))
        some: Bools = (first_i <= last_j) & (first_j <= last_i)
        return Coverage(some, some & (first_i == last_i) & (first_j == last_j))


@lru_cache(maxsize=32)
def _ids(pattern: Segments) -> Ints:
    return np.repeat(np.arange(len(pattern.lengths)), pattern.lengths)

"""Pairs and blocks counted without a list of them: patterns of distances and of chosen tokens.

Where chosen tokens (`keys`, `queries`, `global`, `sink`) begin and end, queries and keys are cut.
In a rectangle between two cuts of each, a pattern depends on i − j alone: it changes its rule at a
few distances and repeats with a period between them (`distances.py`), and the number of pairs at a
distance is linear between the corners of the rectangle. So counts are sums of arithmetic series,
and nothing grows with n. Blocks are counted the same way, by u − v.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise, product
from math import gcd
from typing import NamedTuple

import numpy as np

from weft.patterns.algebra import And, Not, Or, Pattern
from weft.patterns.distances import DistanceRule, joined_rule, rule_of
from weft.patterns.region import Bools, Ints, Region, interval
from weft.patterns.selection import Global, Keys, Queries

_MOST_RECTANGLES = 4096
_NONE: frozenset[int] = frozenset()


class GridRule(NamedTuple):
    """How a pattern changes with the distance, and where the queries and keys are cut."""

    distances: DistanceRule
    rows: frozenset[int] = _NONE
    cols: frozenset[int] = _NONE


class Stretch(NamedTuple):
    """Neighbouring positions, or blocks, of equal size."""

    first: int
    last: int
    size: int = 1


@lru_cache(maxsize=256)
def grid_rule_of(pattern: Pattern, n: int | None) -> GridRule | None:
    """The rule of a pattern of distances and few chosen tokens; None for others."""
    found = _rule_of(pattern, n)
    few = found is not None and (len(found.rows) + 1) * (len(found.cols) + 1) <= _MOST_RECTANGLES
    return found if few else None


def _rule_of(pattern: Pattern, n: int | None) -> GridRule | None:
    if isinstance(pattern, Keys | Queries | Global):
        starts, ends = pattern.spans(n)
        edges = frozenset(map(int, (*starts, *(ends + 1))))
        rows = _NONE if isinstance(pattern, Keys) else edges
        cols = _NONE if isinstance(pattern, Queries) else edges
        return GridRule(DistanceRule(_NONE, 1), rows, cols)
    if isinstance(pattern, Not):
        return grid_rule_of(pattern.inner, n)
    if isinstance(pattern, And | Or):
        rules = [grid_rule_of(part, n) for part in pattern.parts]
        known = [rule for rule in rules if rule is not None]
        joined = joined_rule([rule.distances for rule in known])
        if joined is None or len(known) < len(rules):
            return None
        rows = _NONE.union(*(rule.rows for rule in known))
        cols = _NONE.union(*(rule.cols for rule in known))
        return GridRule(joined, rows, cols)
    rule = rule_of(pattern)
    return None if rule is None else GridRule(rule)


@lru_cache(maxsize=256)
def visible_in_closed_form(pattern: Pattern, n: int) -> int | None:
    """How many of n × n pairs see each other; None where there is no closed form."""
    rule = grid_rule_of(pattern, n)
    if rule is None:
        return None
    cuts, period = rule.distances

    def sees(i: Ints, j: Ints) -> Bools:
        return pattern.sees(i, j, n)

    rows, cols = _stretches(rule.rows, n), _stretches(rule.cols, n)
    return sum(_counted(sees, row, col, cuts, period) for row, col in product(rows, cols))


@lru_cache(maxsize=256)
def computed_in_closed_form(
    pattern: Pattern,
    rows: tuple[int, int],
    cols: tuple[int, int],
    length: int,
    block: int,
) -> int | None:
    """Pairs in the visible blocks of (first, count) queries × keys, in natural order."""
    rule = grid_rule_of(pattern, length)
    if rule is None:
        return None
    cuts, period = rule.distances
    (i, high), (j, wide) = rows, cols
    changes = _NONE.union(*(_straddled(cut - (i - j), block) for cut in cuts))

    def covers(u: Ints, v: Ints) -> Bools:
        queries, keys = _places(u, i, high, block), _places(v, j, wide, block)
        return pattern.covers(queries, keys, length).some

    sides = (
        _blocks((edge - first for edge in edges), count, block)
        for edges, first, count in ((rule.rows, i, high), (rule.cols, j, wide))
    )
    step = period // gcd(period, block)
    return sum(
        _counted(covers, row, col, changes, step) * row.size * col.size
        for row, col in product(*sides)
    )


def _stretches(edges: Iterable[int], n: int) -> list[Stretch]:
    """0 to n − 1, cut at these edges."""
    inside = sorted({0, n, *(edge for edge in edges if 0 < edge < n)})
    return [Stretch(low, high - 1) for low, high in pairwise(inside)]


def _blocks(edges: Iterable[int], count: int, block: int) -> list[Stretch]:
    """Blocks of `count` positions; one that holds an edge inside, or is not whole, is alone."""
    whole, rest = divmod(count, block)
    cuts = {at for edge in edges for at in (edge // block, -(-edge // block))}
    stretches = (
        [stretch._replace(size=block) for stretch in _stretches(cuts, whole)] if whole else []
    )
    return [*stretches, Stretch(whole, whole, rest)] if rest else stretches


def _places(at: Ints, first: int, count: int, block: int) -> Region:
    """The positions of these blocks; the last of `count` positions may be shorter."""
    low = at * block
    return interval(first + low, first + np.minimum(low + block, count) - 1)


def _straddled(cut: int, block: int) -> frozenset[int]:
    """Where the rule for u − v may change if that for i − j changes at `cut`."""
    return frozenset(range((cut - block) // block, (cut + block) // block + 2))


def _counted(
    asked: Callable[[Ints, Ints], Bools],
    rows: Stretch,
    cols: Stretch,
    cuts: frozenset[int],
    period: int,
) -> int:
    """How many (i, j) of a rectangle are seen, where that depends on d = i − j alone."""
    low, high = rows.first - cols.last, rows.last - cols.first
    corners = {rows.first - cols.first, rows.last - cols.last}
    inside = {cut for cut in cuts | corners if low < cut <= high}
    total = 0
    for start, end in pairwise(sorted({low, *inside, high + 1})):
        first = np.arange(start, min(end, start + period), dtype=np.int64)
        i = np.maximum(rows.first, cols.first + first)
        first = first[np.broadcast_to(asked(i, i - first), first.shape)]
        if max(rows.last, cols.last) >= 1 << 30:
            first = first.astype(object)  # n² pairs fit into 63 bits, or not
        count = (end - 1 - first) // period + 1
        last = first + (count - 1) * period
        both = _at_distance(rows, cols, first) + _at_distance(rows, cols, last)
        total += int((count * both).sum()) // 2
    return total


def _at_distance(rows: Stretch, cols: Stretch, d: Ints) -> Ints:
    """How many pairs of the rectangle have i − j = d."""
    return np.minimum(rows.last, cols.last + d) - np.maximum(rows.first, cols.first + d) + 1

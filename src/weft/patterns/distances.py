"""Patterns of i − j alone: visible pairs and computed blocks in closed form, at any length.

Such a pattern changes its rule at a few distances (`cuts`: 0, ± a window) and repeats with a period
between them (strides, dilations). So pairs are sums of arithmetic series, and blocks are counted by
u − v: nothing grows with n² or with a list of blocks.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import lcm
from typing import NamedTuple

import numpy as np

from weft.patterns.algebra import And, Not, Or, Pattern
from weft.patterns.region import Ints, interval
from weft.patterns.sequence import Causal, Dilated, Full, Sliding, Strided

_LONGEST_PERIOD = 1 << 22
_AT_ONCE = 1 << 20


class DistanceRule(NamedTuple):
    """Where a pattern of distances changes, and after how many distances it repeats."""

    cuts: frozenset[int]  # a rule holds for distances from one cut to below the next
    period: int


def rule_of(pattern: Pattern) -> DistanceRule | None:
    """The rule of a pattern that depends on i − j alone; None for others."""
    if isinstance(pattern, Full):
        return DistanceRule(frozenset(), 1)
    if isinstance(pattern, Causal):
        return DistanceRule(frozenset({0}), 1)
    if isinstance(pattern, Sliding):
        return DistanceRule(frozenset({1 - pattern.window, pattern.window}), 1)
    if isinstance(pattern, Strided):
        return DistanceRule(frozenset(), pattern.stride)
    if isinstance(pattern, Dilated):
        return DistanceRule(frozenset({-pattern.reach, pattern.reach + 1}), pattern.dilation)
    if isinstance(pattern, Not):
        return rule_of(pattern.inner)
    if isinstance(pattern, And | Or):
        rules = [rule_of(part) for part in pattern.parts]
        known = [rule for rule in rules if rule is not None]
        period = lcm(1, *(rule.period for rule in known))
        if len(known) == len(rules) and period <= _LONGEST_PERIOD:
            return DistanceRule(frozenset().union(*(rule.cuts for rule in known)), period)
    return None


@lru_cache(maxsize=256)
def visible_in_closed_form(pattern: Pattern, n: int) -> int | None:
    """How many of n × n pairs see each other; None where the pattern is not one of distances."""
    rule = rule_of(pattern)
    if rule is None:
        return None
    inside = sorted({cut for cut in rule.cuts | {0} if -n < cut < n})
    edges = [1 - n, *inside, n]
    total = 0
    for low, high in pairwise(edges):
        first = np.arange(low, min(high, low + rule.period), dtype=np.int64)
        first = first[np.broadcast_to(pattern.sees(first + n, np.int64(n), None), first.shape)]
        total += _series(first, high, rule.period, n)
    return total


def _series(first: Ints, high: int, step: int, n: int) -> int:
    """Σ (n − |d|) over d = f, f + step, ... < high for each f; all d have the same sign."""
    if not len(first):
        return 0
    exact = first if n < 1 << 30 else first.astype(object)  # n² pairs fit into 63 bits, or not
    count = (high - 1 - exact) // step + 1
    last = exact + (count - 1) * step
    return int((count * (2 * n - abs(exact) - abs(last))).sum()) // 2


def computed_in_closed_form(pattern: Pattern, n: int, block: int) -> int | None:
    """Pairs in the visible blocks of n × n, in natural order; None for other patterns."""
    if rule_of(pattern) is None:
        return None
    whole, rest = divmod(n, block)
    total = 0
    for at in range(1 - whole, whole, _AT_ONCE):
        apart = np.arange(at, min(whole, at + _AT_ONCE), dtype=np.int64)  # u − v
        first = apart * block
        rows, cols = interval(first, first + block - 1), interval(0, block - 1)
        some = np.broadcast_to(pattern.covers(rows, cols, n).some, apart.shape)
        total += int((whole - abs(apart[some])).sum()) * block**2
    if rest:
        last = interval(whole * block, n - 1)
        for at in range(0, whole, _AT_ONCE):
            first = np.arange(at, min(whole, at + _AT_ONCE), dtype=np.int64) * block
            others = interval(first, first + block - 1)
            for rows, cols in ((last, others), (others, last)):
                some = np.broadcast_to(pattern.covers(rows, cols, n).some, first.shape)
                total += int(some.sum()) * block * rest
        total += int(np.all(pattern.covers(last, last, n).some)) * rest**2
    return total

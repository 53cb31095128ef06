"""Patterns of i − j alone, and the rule by which `closed_forms.py` counts what they see.

Such a pattern changes its rule at a few distances (`cuts`: 0, ± a window) and repeats with a period
between them (strides, dilations).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from weft.patterns.algebra import And, Not, Or, Pattern
from weft.patterns.sequence import Causal, Dilated, Full, Sliding, Strided

_LONGEST_PERIOD = 1 << 22


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
        return joined_rule(known) if len(known) == len(rules) else None
    return None


def joined_rule(rules: Sequence[DistanceRule]) -> DistanceRule | None:
    """The rule of several patterns together; None where their period is too long to unroll."""
    period = lcm(1, *(rule.period for rule in rules))
    if period > _LONGEST_PERIOD:
        return None
    return DistanceRule(frozenset().union(*(rule.cuts for rule in rules)), period)

"""Patterns by number: what a compiled graph can hold of a pattern.

A graph of torch holds tensors and numbers. A pattern is given a number in this process when a
module is built with it; the operator in `block_sparse_op` finds the pattern again by that number.
"""

from __future__ import annotations

from weft.patterns import Pattern, Queries
from weft.patterns.lower import branches, conjuncts

_KNOWN: dict[Pattern, int] = {}
_PATTERNS: list[Pattern] = []


def number(pattern: Pattern) -> Pattern:
    """The pattern, with its number; equal patterns have one. −1: the operator cannot take it.

    Rows that read everything are computed apart, which the operator leaves to the usual path.
    """
    if pattern not in _KNOWN:
        apart = any(isinstance(c, Queries) for b in branches(pattern) for c in conjuncts(b))
        _KNOWN[pattern] = -1 if apart else len(_PATTERNS)
        if not apart:
            _PATTERNS.append(pattern)
    object.__setattr__(pattern, "_number", _KNOWN[pattern])
    return pattern


def number_of(pattern: Pattern) -> int:
    """Its number, or −1 where it has none."""
    return getattr(pattern, "_number", -1)


def pattern_of(number: int) -> Pattern:
    """The pattern of a number."""
    return _PATTERNS[number]

"""ListOps expressions by Long Range Arena's published rules, many trees at a time.

    [MAX 4 [SM 7 8 ] 0 [MED 1 9 3 5 ] ]    ->  5

A node above the depth limit is an operator with probability 1/4, else a digit 0-9; at the limit it
is a digit. An operator is MIN, MAX, MED (median, x.5 cut to x) or SM (sum modulo 10), each as
likely, with 2 to `arguments` arguments, each number as likely. A digit is one token; an operator
adds two, itself and its closing bracket.

Trees grow level by level, all trees of a chunk at once, so the work is a few array operations for
each level. The trees of chunk i are a function of (seed, i) and the rules.

Papers: Nangia and Bowman 2018, https://arxiv.org/abs/1804.06028; Tay et al. 2021, Long Range Arena,
https://arxiv.org/abs/2011.04006
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.arena.data.draws import bits, scaled
from weft.errors import WeftError

OPERATORS = ("MIN", "MAX", "MED", "SM")
TOKENS = (*"0123456789", *(f"[{name}" for name in OPERATORS), "]")  # a token's id is its place
FIRST_OPERATOR, CLOSE = 10, 14
CHUNK = 4096  # trees drawn together; part of what a seed means


def _median(values: list[int]) -> int:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


_DIGITS = {str(digit): digit for digit in range(10)}
_RULES: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
    # Two operators of the original data that Long Range Arena leaves out.
    "[FIRST": lambda values: values[0],
    "[LAST": lambda values: values[-1],
}


def evaluate(tokens: Sequence[str]) -> int:
    """The value of one expression, e.g. of `"[MAX 2 9 ]".split()`."""
    open_lists: list[list[int]] = [[]]
    names: list[str] = []
    for place, token in enumerate(tokens):
        if token in _DIGITS:
            open_lists[-1].append(_DIGITS[token])
        elif token in _RULES:
            names.append(token)
            open_lists.append([])
        elif token == "]" and names and open_lists[-1]:
            values = open_lists.pop()
            open_lists[-1].append(_RULES[names.pop()](values))
        else:
            raise WeftError(f"token {place + 1} of an expression cannot be {token!r} here")
    if names or len(open_lists[0]) != 1:
        raise WeftError(f"an expression is one closed tree; {len(names)} lists are left open")
    return open_lists[0][0]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which trees are drawn, and which of them are kept: shortest < tokens < length."""

    depth: int
    arguments: int
    shortest: int
    length: int


@dataclass(frozen=True, eq=False)
class _Level:
    """Nodes of one depth; children of its operators are the next level, in the same order."""

    tree: np.ndarray  # (nodes,) which tree a node belongs to
    token: np.ndarray  # (nodes,) uint8: a digit or an operator
    counts: np.ndarray  # (operators,) how many arguments each has

    @property
    def operators(self) -> np.ndarray:
        """(operators,) their places in the level."""
        return np.flatnonzero(self.token >= FIRST_OPERATOR)

    def of(self, kept: np.ndarray) -> _Level:
        """The nodes of some trees."""
        mine = kept[self.tree]
        return _Level(self.tree[mine], self.token[mine], self.counts[mine[self.operators]])


@dataclass(frozen=True, eq=False)
class Trees:
    """The kept trees of a chunk, one after another."""

    tokens: np.ndarray  # (total,) uint8
    lengths: np.ndarray  # (trees,) int64
    values: np.ndarray  # (trees,) int64


def chunk(rules: Rules, seed: int, number: int) -> Trees:
    """Draw CHUNK trees and keep those of a wanted length."""
    levels = _grow(rules, bits(seed, number))
    lengths = _lengths(levels)[0]
    kept = (lengths > rules.shortest) & (lengths < rules.length)
    levels = [level.of(kept) for level in levels]
    sizes = _lengths(levels)
    return Trees(_written(levels, sizes), sizes[0], _values(levels).astype(np.int64))


def _grow(rules: Rules, stream: np.random.PCG64) -> list[_Level]:
    tree = np.arange(CHUNK)
    levels, size = [], np.zeros(CHUNK, dtype=np.int64)  # tokens of each tree so far
    for depth in range(1, rules.depth + 1):
        drawn = stream.random_raw(len(tree))  # (nodes,)
        size += np.bincount(tree, minlength=CHUNK)
        # A tree that is too long already is not grown further: it will be dropped whole.
        may_branch = (size < rules.length) & (depth < rules.depth)
        branches = (drawn >> np.uint64(62) == 0) & may_branch[tree]  # (nodes,)
        token = scaled(drawn, 10).astype(np.uint8)
        operator = (drawn[branches] >> np.uint64(60) & np.uint64(3)).astype(np.uint8)
        token[branches] = FIRST_OPERATOR + operator
        counts = 2 + scaled(drawn[branches], rules.arguments - 1)
        levels.append(_Level(tree, token, counts))
        size += np.bincount(tree[branches], minlength=CHUNK)
        tree = np.repeat(tree[branches], counts)
        if not len(tree):
            break
    return levels


def _starts(counts: np.ndarray) -> np.ndarray:
    """Where each list of arguments begins in the next level."""
    return np.cumsum(counts) - counts


def _lengths(levels: list[_Level]) -> list[np.ndarray]:
    """Tokens below and including each node, for each level."""
    found: list[np.ndarray] = []
    for level in reversed(levels):
        length = np.ones(len(level.token), dtype=np.int64)
        if len(level.counts):
            length[level.operators] = 2 + np.add.reduceat(found[-1], _starts(level.counts))
        found.append(length)
    return found[::-1]


def _written(levels: list[_Level], lengths: list[np.ndarray]) -> np.ndarray:
    """All expressions as one row of tokens: each node knows its position from its parent."""
    out = np.full(int(lengths[0].sum()), CLOSE, dtype=np.uint8)
    place = np.cumsum(lengths[0]) - lengths[0]
    for depth, level in enumerate(levels):
        out[place] = level.token
        if not len(level.counts):
            break
        before = np.cumsum(lengths[depth + 1]) - lengths[depth + 1]
        origin = place[level.operators] + 1 - before[_starts(level.counts)]
        place = np.repeat(origin, level.counts) + before
    return out


def _values(levels: list[_Level]) -> np.ndarray:
    """What each tree comes to: (trees,) uint8."""
    below = np.zeros(0, dtype=np.uint8)
    for level in reversed(levels):
        value = level.token.copy()
        if len(level.counts):
            value[level.operators] = _applied(level, below)
        below = value
    return below


def _applied(level: _Level, arguments: np.ndarray) -> np.ndarray:
    """(operators,) each operator's value, from the level below."""
    starts, names = _starts(level.counts), level.token[level.operators] - FIRST_OPERATOR
    sums = np.add.reduceat(arguments.astype(np.int64), starts) % 10
    found = np.choose(
        names,
        [
            np.minimum.reduceat(arguments, starts),
            np.maximum.reduceat(arguments, starts),
            np.zeros(len(names), dtype=np.uint8),
            sums.astype(np.uint8),
        ],
    )
    middle = names == OPERATORS.index("MED")
    found[middle] = _medians(arguments, starts[middle], level.counts[middle])
    return found


def _medians(arguments: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    places = np.arange(counts.max(initial=1))
    mine = places < counts[:, None]  # (operators, most arguments)
    table = np.where(mine, arguments[np.where(mine, starts[:, None] + places, 0)], 10)
    table.sort(axis=1)
    rows = np.arange(len(counts))
    return (table[rows, (counts - 1) // 2] + table[rows, counts // 2]) // 2

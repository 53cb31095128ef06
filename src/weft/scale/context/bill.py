"""What an exchange costs before it runs: bytes that each rank hands over, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.patterns import Pattern
from weft.patterns.region import Ints
from weft.scale.context.shards import Shards, reading

LABEL = 4  # bytes of the label that travels with a key


@dataclass(frozen=True, eq=False)
class Bill:
    """Bytes by rank: (ranks,) each."""

    forward: Ints
    backward: Ints

    def __add__(self, other: Bill) -> Bill:
        return Bill(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: int) -> Bill:
        return Bill(self.forward * times, self.backward * times)


def nothing(ranks: int) -> Bill:
    """No exchange."""
    return Bill(np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64))


def moved(counts: Ints, numbers: int, itemsize: int, *, learned: bool = True) -> Bill:
    """Rows counted (from, to), of so many numbers each; gradients go back the way they came."""
    away = counts * (1 - np.eye(len(counts), dtype=np.int64)) * numbers * itemsize
    return Bill(away.sum(1), away.sum(0) * learned)


def summed(ranks: int, numbers: int, itemsize: int, *, learned: bool = True) -> Bill:
    """A sum over the ranks, and that of its gradients."""
    each = np.full(ranks, reduced(numbers, ranks) * itemsize)
    return Bill(each, each * learned)


def reduced(numbers: int, ranks: int) -> int:
    """Numbers that a rank sends in a ring that sums `numbers` numbers over the ranks."""
    return 2 * (ranks - 1) * -(-numbers // ranks)


def attention_bill(
    pattern: Pattern,
    shards: Shards,
    *,
    heads: int,
    kv_heads: int,
    width: int,
    batch: int = 1,
    itemsize: int = 2,
    labelled: bool = False,
    documents: bool = False,
    biased: bool = False,
) -> Bill:
    """Bytes that attention under a pattern sends; heads with patterns of their own add up.

    Keys and values are fetched once, and again in backward where they come in turns; a label of
    4 bytes goes with each key of each row where there is padding or there are documents.
    """
    each = [pattern.head(a, heads) for a in range(heads)]
    kinds = list(dict.fromkeys(each))
    total = nothing(shards.ranks)
    for kind in kinds:
        own = each.count(kind)
        keys = kv_heads if len(kinds) == 1 else own
        plan = reading(kind, shards)
        fetched = moved(plan.counts, batch * 2 * keys * width, itemsize)
        labels = moved(plan.counts, batch, LABEL, learned=False)
        turns = plan.turns and not biased
        if turns:
            fetched = Bill(fetched.forward, fetched.forward + fetched.backward)
            labels = Bill(labels.forward, labels.forward)
        total = total + fetched + (labels * int(labelled or documents))
        wide = np.array([len(rows) for rows in plan.wide_of])
        there = np.repeat(wide[:, None], shards.ranks, axis=1)  # (from, to): every query goes out
        work = max(itemsize, 4)
        total = total + moved(there, batch * own * width, itemsize)
        total = total + moved(there.T, batch * own * (width + 1), work)
        total = total + (moved(there, batch, LABEL, learned=False) * int(documents))
    return total

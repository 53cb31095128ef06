"""What follows from a pattern: dense mask, cost, what a decoder keeps, how far it reaches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from weft.errors import WeftError, at_least
from weft.patterns.algebra import Pattern
from weft.patterns.closed_forms import grid_rule_of, visible_in_closed_form
from weft.patterns.layout import layout
from weft.patterns.lower import lower
from weft.patterns.order import Order
from weft.patterns.region import FAR, Bools, Ints, interval

_AT_ONCE = 1 << 20


def mask(
    pattern: Pattern, n: int, m: int | None = None, *, heads: int = 1, device: object = None
) -> Tensor:
    """The definition, evaluated on all pairs: (heads, n, m), True where a query reads a key.

    Queries are the last n of m positions.
    """
    m = n if m is None else m
    i = torch.arange(m - n, m, device=device)[:, None]  # type: ignore[arg-type]  # any device torch takes
    j = torch.arange(m, device=device)[None, :]  # type: ignore[arg-type]  # any device torch takes
    rows = [pattern.head(a, heads).sees(i, j, m).expand(n, m) for a in range(heads)]
    return torch.stack(rows)


def keeps(pattern: Pattern, positions: Ints, now: int) -> Bools:
    """Which of the keys at these positions a query at position `now` or later can still read."""
    later, keys = interval(now, FAR), interval(positions, positions)
    return np.broadcast_to(pattern.covers(later, keys, None).some, positions.shape)


def kept(pattern: Pattern, n: int) -> int:
    """How many of n keys a query at position n or later can still read."""
    rule = None if pattern.needs_length else grid_rule_of(pattern, None)
    if rule is None:
        parts = (np.arange(at, min(n, at + _AT_ONCE)) for at in range(0, n, _AT_ONCE))
        return sum(int(keeps(pattern, part, n).sum()) for part in parts)
    edges = sorted({0, n, *(edge for edge in rule.cols if edge < n)})
    return sum(_kept_between(pattern, low, high, n) for low, high in pairwise(edges))


def _kept_between(pattern: Pattern, low: int, high: int, now: int) -> int:
    """Of keys that are told apart by their distance alone: if one is kept, so are all after it."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if keeps(pattern, np.array([middle]), now)[0]:
            high = middle
        else:
            low = middle + 1
    return end - low


@dataclass(frozen=True)
class Cost:
    """What one layer of attention costs, counted before anything is run."""

    pairs: int  # query-key pairs that see each other, per head
    computed: int  # pairs computed in blocks, visible or masked, per head
    density: float  # pairs / (n·m)
    flops: int  # forward, all heads: 2·d for the score and 2·d for the value of each computed pair
    bytes: int  # q, k, v read and the output written once, all heads


def cost(
    pattern: Pattern,
    n: int,
    *,
    heads: int = 1,
    head_dim: int = 64,
    block: int = 128,
    itemsize: int = 2,
) -> Cost:
    """The cost of n queries over n keys."""
    at_least(1, n=n, heads=heads, head_dim=head_dim, block=block)
    each = [pattern.head(a, heads) for a in range(heads)]
    pairs = sum(visible_pairs(p, n, block) for p in each)
    computed = sum(min(n * n, lower(p, n, n, block).computed_pairs(block)) for p in each)
    return Cost(
        pairs=pairs // heads,
        computed=computed // heads,
        density=pairs / (heads * n * n),
        flops=4 * head_dim * computed,
        bytes=4 * heads * n * head_dim * itemsize,
    )


def visible_pairs(pattern: Pattern, n: int, block: int = 128) -> int:
    """How many pairs see each other: in closed form, or full blocks by their size and the others by
    evaluation."""
    if (known := visible_in_closed_form(pattern, n)) is not None:
        return known
    order = Order(n)
    found = layout(pattern, order, order, n, block)
    u, v = found.row_of, found.cols.astype(np.int64)
    area = np.minimum(n - u * block, block) * np.minimum(n - v * block, block)
    total = int(area[found.full].sum())
    u, v = u[~found.full], v[~found.full]
    step = np.arange(block)
    for at in range(0, len(u), 256):
        i = (u[at : at + 256, None] * block + step)[:, :, None]
        j = (v[at : at + 256, None] * block + step)[:, None, :]
        inside = (i < n) & (j < n)
        seen = pattern.sees(np.minimum(i, n - 1), np.minimum(j, n - 1), n)
        total += int((seen & inside).sum())
    return total


def receptive_field(pattern: Pattern, n: int, layers: int) -> Tensor:
    """Which position can influence which after `layers` layers: (n, n) booleans."""
    at_least(1, n=n, layers=layers)
    if n > 8192:
        raise WeftError(f"the receptive field is dense, n is at most 8192; got n={n}")
    step = mask(pattern, n)[0].float()  # (n, n)
    reach = step
    for _ in range(layers - 1):
        reach = ((reach @ step) > 0).float()
    return reach.bool()

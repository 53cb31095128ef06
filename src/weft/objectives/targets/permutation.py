"""Orders of prediction: a random order of a text's tokens, the last of which are predicted.

    rank_i    the place of token i in the order; the `share` with the highest ranks is predicted
    level     what a row of attention knows: tokens with rank ≤ level, and of the hidden tokens
              after it, where a stream of masks tells of them, that they are there

With levels the masks of XLNet and MPNet are one rule. Content of a token knows up to the token's
own rank, a query about it up to the rank before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Why objectives that learn orders take no marks.
ORDERED = "who reads whom follows a random order alone; pretrain with masked_lm"


class Permutation(NamedTuple):
    """An order for each row, and its tail; padding comes last in the order."""

    rank: Tensor  # (b, n)
    tail: Tensor  # (b, p) tokens to predict, by index, in the order of prediction
    real: Tensor  # (b, p): False where a row has fewer to predict
    known: Tensor  # (b,) tokens that are not predicted

    @property
    def tail_rank(self) -> Tensor:
        """(b, p)."""
        return self.rank.gather(1, self.tail)


def permutation(
    valid: Tensor, share: float, generator: torch.Generator, numbers: Tensor | None = None
) -> Permutation:
    """A random order of the real tokens of each row, valid (b, n).

    With `numbers` (b, n), words of these numbers are ordered whole, and the tail is then shuffled.
    """
    keys = torch.rand(valid.shape, generator=generator, device=valid.device)
    keys = keys if numbers is None else keys.gather(1, numbers)
    order = keys.masked_fill(~valid, 2.0).argsort(dim=1, stable=True)  # (b, n)
    count = valid.sum(1)  # (b,)
    # A row predicts one token at least; the widest tail follows from the shape alone.
    predicted = (count.double() * share + 0.5).floor().long().clamp(min=1).minimum(count)  # (b,)
    known = count - predicted
    if numbers is not None:
        order = order.gather(1, _shuffled_tail(known, count, valid.shape[1], generator))
    steps = torch.arange(
        max(1, math.floor(valid.shape[1] * share + 0.5)), device=valid.device
    )  # (p,)
    at = (known[:, None] + steps).clamp(max=valid.shape[1] - 1)
    return Permutation(order.argsort(1), order.gather(1, at), steps < predicted[:, None], known)


def _shuffled_tail(known: Tensor, count: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Places (b, width) of an order with those from `known` to `count` (b,) in random order."""
    place = torch.arange(width, device=known.device).expand(len(known), -1)
    inside = (place >= known[:, None]) & (place < count[:, None])
    chance = torch.rand(place.shape, generator=generator, device=known.device)
    # A tail's keys stay between those of what is before it and of padding.
    span = (count - known)[:, None]
    return torch.where(inside, known[:, None] + chance * span * 0.999 - 0.5, place).argsort(1)


def places_of(valid: Tensor) -> Tensor:
    """The position of each token among the real ones of its row: (b, n)."""
    return (valid.long().cumsum(1) - 1).clamp(min=0)


def seen_at(level: Tensor, known: Tensor, hidden: Tensor | None, queries: int) -> Tensor:
    """Masks of rows with these levels (b, rows) over all columns: (b, rows, columns).

    Columns are tokens of ranks `known` (b, n), then masks of ranks `hidden` (b, p), then queries,
    which no token reads. A rank of −1 marks a column that is not there.
    """
    level = level[:, :, None]
    columns = [(known[:, None] >= 0) & (known[:, None] <= level)]
    if hidden is not None:
        columns.append((hidden[:, None] >= 0) & (hidden[:, None] > level))
    columns.append(torch.zeros_like(columns[0][..., :1]).expand(-1, -1, queries))
    return torch.cat(columns, dim=-1)

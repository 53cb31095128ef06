"""Spans of tokens that are hidden: how many, where, and the two sequences that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


def span_counts(lengths: Tensor, rate: float, mean: float) -> tuple[Tensor, Tensor]:
    """Tokens that are hidden, and spans they make up, of rows of these lengths: both like it."""
    wanted = (lengths.double() * rate + 0.5).floor().long()
    hidden = wanted.minimum(lengths - 1).clamp(min=1).minimum(lengths)
    # Every span follows at least one visible token, if there is any.
    most = hidden.minimum(lengths - hidden).clamp(min=1)
    spans = (hidden.double() / mean + 0.5).floor().long().clamp(min=1).minimum(most)
    return hidden, spans.minimum(hidden)


@dataclass(frozen=True)
class Widths:
    """Room that rows up to a length need at most, known without looking at any."""

    length: int
    spans: int
    inputs: int  # tokens of an input
    targets: int  # tokens of a target, without its end

    @staticmethod
    @lru_cache(maxsize=64)
    def of(length: int, rate: float, mean: float) -> Widths:
        """For rows of 0 to `length` tokens."""
        every = torch.arange(length + 1)
        hidden, spans = span_counts(every, rate, mean)
        return Widths(
            length=length,
            spans=int(spans.max()),
            inputs=int((every - hidden + spans).max()),
            targets=int((hidden + spans).max()),
        )


def noise_spans(
    lengths: Tensor, rate: float, mean: float, room: Widths, generator: torch.Generator
) -> Tensor:
    """Where rows of these lengths (b,) are hidden: (b, n), in spans of random lengths."""
    hidden, spans = span_counts(lengths, rate, mean)
    parts = [
        random_parts(total, spans, room.length, room.spans, generator)
        for total in (lengths - hidden, hidden)
    ]  # (b, k) each: what stays before each span, and the span
    ends = torch.stack(parts, dim=-1).flatten(1).cumsum(1)  # (b, 2k)
    place = torch.arange(room.length, device=lengths.device).expand(len(lengths), -1)
    piece = torch.searchsorted(ends, place.contiguous(), right=True)  # (b, n)
    return (piece % 2 == 1) & (place < lengths[:, None])


def random_parts(
    total: Tensor, parts: Tensor, width: int, most: int, generator: torch.Generator
) -> Tensor:
    """Lengths (b, most) that cut `total` (b,) tokens into `parts` (b,) pieces, all cuts alike.

    Pieces beyond a row's parts are 0. A cut stands before one of the tokens 1 to total − 1.
    """
    place = torch.arange(width, device=total.device)
    keys = torch.rand((len(total), width), generator=generator, device=total.device)
    possible = (place >= 1) & (place < total[:, None])  # (b, n)
    rank = keys.masked_fill(~possible, 2.0).argsort(1).argsort(1)
    cut = possible & (rank < parts[:, None] - 1)  # (b, n)
    piece = cut.long().cumsum(1)
    lengths = torch.zeros(len(total), most, dtype=torch.long, device=total.device)
    inside = (place < total[:, None]).long()
    return lengths.scatter_add_(1, piece.clamp(max=most - 1), inside)


def corrupted(
    ids: Tensor, real: Tensor, noise: Tensor, first: int, room: Widths
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Inputs and targets of ids (b, n) hidden where noise (b, n); sentinel 0 has the id `first`."""
    before = torch.nn.functional.pad(noise[:, :-1], (1, 0))
    opens = noise & ~before  # (b, n)
    sentinel = first + opens.long().cumsum(1) - 1  # (b, n)
    inputs = torch.where(opens, sentinel, ids)
    targets = torch.stack((sentinel, ids), dim=-1).flatten(1)  # (b, 2n)
    wanted = torch.stack((opens, noise), dim=-1).flatten(1)
    kept = opens | (real & ~noise)  # (b, n)
    return packed(inputs, kept, room.inputs), packed(targets, wanted, room.targets)


def packed(ids: Tensor, chosen: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The chosen ids (b, n) of each row, in order, as (b, width), and where there are any."""
    order = (~chosen).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
    real = chosen.gather(1, order)
    return ids.gather(1, order).masked_fill(~real, 0), real

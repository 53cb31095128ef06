"""Attention in an order that the tokens choose, by the block-sparse kernels.

Each round of hashing puts the tokens of a head into slots, sorted by bucket. In the order of slots
a chunk and the chunks before it are a static pattern, and "same bucket" is a document label: so
`attend` does the work, one row of its batch for each round of each head. Rows move into slots and
back by index, forward and backward alike: every token has one slot in a round.

Letters: r rounds, s slots (n tokens and some free ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.attend import Kernel, attend
from weft.kernels.block_sparse import WIDTHS
from weft.kernels.hash_chunks import cut_buckets, merge_rounds, take_rows
from weft.patterns import BlockNeighbours, Causal, Sliding


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Where each token stands in every round."""

    token: Tensor  # (b, h, r, s), n where a slot is free
    slot: Tensor  # (b, h, r, n)
    label: Tensor | None = None  # (b, h, r, s): a slot reads slots of its label; None: all


def can_use_slots(q: Tensor) -> bool:
    """Whether the fused kernels take these; elsewhere chunks of plain products are as fast."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    return q.is_cuda and half and q.shape[3] in WIDTHS


def slots_of_buckets(buckets: Tensor, count: int, size: int) -> Slots:
    """Each bucket by itself, in order of position, from a new chunk on; buckets (b, h, r, n)."""
    token, slot = cut_buckets(buckets, count, size)
    token = token.flatten(3)  # (b, h, r, s)
    label = F.pad(buckets, (0, 1), value=count).gather(-1, token)
    return Slots(token=token, slot=slot, label=label)


def slots_of_order(buckets: Tensor, size: int) -> Slots:
    """All tokens in order of (bucket, position), and free slots to the end of the last chunk."""
    n = buckets.shape[-1]
    order = buckets.argsort(dim=-1, stable=True)  # (b, h, r, n)
    place = torch.arange(n, device=order.device).expand_as(order)
    slot = torch.empty_like(order).scatter(-1, order, place)
    return Slots(token=F.pad(order, (0, -n % size), value=n), slot=slot)


def attend_slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Slots,
    *,
    size: int,
    lookback: int,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
) -> Tensor:
    """q, k, v (b, h, n, d) -> (b, h, n, d), the rounds merged; no slot reads itself.

    Causal: the slots before it, back to the beginning of the `lookback`th chunk before its own.
    Otherwise: its own chunk and the `lookback` before it, the first chunks reading the last ones.
    """
    rounds = slots.token.shape[2]
    asks, keys, values = (IntoSlots.apply(x, slots.token, slots.slot) for x in (q, k, v))
    asks, keys, values = (
        x.flatten(0, 2)[:, None] for x in (asks, keys, values)
    )  # (b·h·r, 1, s, d)
    pattern = BlockNeighbours(size, lookback, 0) & ~Sliding(1)
    label = slots.label if slots.label is not None else (slots.token == q.shape[2]).long()
    label = label.flatten(0, 2)  # (b·h·r, s)
    if causal:
        pattern = Causal() & pattern
    elif lookback:
        tail = lookback * size
        keys, values = (torch.cat((x[:, :, -tail:], x), 2) for x in (keys, values))
        label = torch.cat((label[:, -tail:], label), 1)
    o, lse = attend(
        asks, keys, values, pattern, segments=label, scale=scale, dropout=dropout, kernel=kernel,
        return_lse=True,
    )  # fmt: skip
    o = o.view(*q.shape[:2], rounds, *o.shape[2:])  # (b, h, r, s, d)
    by_round = lse.view(o.shape[:4]).gather(3, slots.slot)  # (b, h, r, n)
    return merge_rounds(FromSlots.apply(o, slots.token, slots.slot), by_round, v)


class IntoSlots(torch.autograd.Function):
    """Rows (b, h, n, d) in every round's slots: (b, h, r, s, d); free slots hold any row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        return take_rows(x, token.clamp(max=x.shape[2] - 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _by_slot(grad, ctx.saved_tensors[0]).sum(2), None, None


class FromSlots(torch.autograd.Function):
    """What stands in the slots (b, h, r, s, d), in the order of tokens: (b, h, r, n, d)."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, token: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(token)
        return _by_slot(o, slot)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (token,) = ctx.saved_tensors
        n = grad.shape[3]
        rows = _by_slot(grad, token.clamp(max=n - 1))  # (b, h, r, s, d)
        return rows.masked_fill_((token == n)[..., None], 0.0), None, None


def _by_slot(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (b, h, r, s, d) at index (b, h, r, n): (b, h, r, n, d)."""
    return take_rows(x.flatten(1, 2), index.flatten(1, 2)).unflatten(1, index.shape[1:3])

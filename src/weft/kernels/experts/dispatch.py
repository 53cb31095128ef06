"""Rows to experts and back: sorted by expert, multiplied group by group, put where they were.

A *pair* is a token and one of the k experts it chose; pairs are ordered by choice, so pair
p belongs to token p mod t and all first choices come before all second ones. A *bucket* is an
expert, or an expert for one group of tokens. A stable sort of the pairs by bucket is the whole
plan: inside a bucket, earlier pairs have earlier slots.

    capacity C     bucket b owns the slots b·C ... b·C + C − 1; pairs beyond C have none (dropped)
    no capacity    slots are the sorted pairs, as many in a bucket as asked for it (ragged)

All shapes are known beforehand, nothing waits for a GPU, and the gradients of moving rows are moves
of rows: a slot holds one pair, so nothing is added up by atomics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class ExpertSlots(NamedTuple):
    """Which pair is in which slot."""

    source: Tensor  # (s,) the pair in each slot; any pair in an empty slot
    slot: Tensor  # (p,) the slot of each pair; s where it has none
    kept: Tensor | None  # (p,) whether the pair has a slot; None: all have
    ends: Tensor | None  # (e,) where the slots of each bucket end; None: capacity slots each


def assign(
    bucket: Tensor, buckets: int, capacity: int | None = None, *, complete: bool = False
) -> ExpertSlots:
    """Slots for pairs of bucket (p,), where the number `buckets` means none.

    `complete`: every pair has a bucket.
    """
    device, pairs = bucket.device, len(bucket)
    ordered, order = bucket.int().sort(stable=True)
    wanted = torch.arange(buckets + 1, device=device, dtype=torch.int32)
    edges = torch.searchsorted(ordered, wanted)  # (e + 1,) where each bucket begins, and the end
    number = torch.arange(pairs, device=device)
    if capacity is None:
        kept = None if complete else bucket < buckets
        slot = torch.empty_like(order).scatter(0, order, number)
        return ExpertSlots(order, slot, kept, edges[1:].int())
    place = number - edges[ordered]  # (p,) in its bucket, in sorted order
    inside = (place < capacity) & (ordered < buckets)
    slots = torch.where(inside, ordered * capacity + place, buckets * capacity)
    slot = torch.empty_like(order).scatter(0, order, slots)
    row = edges[:-1, None] + torch.arange(capacity, device=device)  # (e, capacity)
    source = order[row.clamp(max=pairs - 1).flatten()]
    return ExpertSlots(source, slot, slot < buckets * capacity, None)


def within_capacity(
    choice: Tensor, experts: int, capacity: int, group: int | None, across: Any
) -> Tensor:
    """Choices (t, k), those beyond the capacity of their expert replaced by `experts`: none.

    The t tokens are those of one device of `across`, whose devices hold equally many, in order. The
    pairs of an expert count over all of them as they do over one: first choices before second
    ones, then in the order of the tokens, of every `group` consecutive tokens of the batch.
    """
    tokens, chosen = choice.shape
    group = min(group or tokens * across.ranks, tokens * across.ranks)
    groups = -(-tokens * across.ranks // group)
    number = torch.arange(tokens, device=choice.device) + across.rank * tokens
    bucket = choice * groups + (number // group)[:, None]  # (t, k)
    taken, buckets = choice < experts, experts * groups
    place = torch.zeros_like(choice)  # (t, k) among the pairs of this device, choice and bucket
    counts = choice.new_zeros(chosen, buckets)
    for k in range(chosen):
        own = torch.where(taken[:, k], bucket[:, k], buckets)
        ordered, order = own.sort(stable=True)
        edges = torch.searchsorted(ordered, torch.arange(buckets + 1, device=own.device))
        edges = torch.cat((edges, edges.new_full((1,), tokens)))
        counts[k] = edges[1:-1] - edges[:-2]
        place[:, k].scatter_(0, order, torch.arange(tokens, device=own.device) - edges[ordered])
    everywhere = across.gather(counts)  # (ranks, k, buckets)
    earlier = everywhere.sum(0).cumsum(0) - everywhere.sum(0)  # (k, buckets) earlier choices
    earlier = earlier + everywhere[: across.rank].sum(0)
    before = earlier.gather(1, torch.where(taken, bucket, 0).t()).t()  # (t, k)
    return torch.where(taken & (place + before < capacity), choice, experts)


def spread(x: Tensor, places: ExpertSlots) -> Tensor:
    """Tokens (t, c) -> slots (s, c); an empty slot holds some token."""
    return _Spread.apply(x, *places[:3])


def combine(z: Tensor, gate: Tensor, places: ExpertSlots) -> Tensor:
    """Slots (s, c), weights of the choices (t, k) -> tokens (t, c); no slot adds 0."""
    ragged, weight = places.ends is not None, gate.t()  # (k, t)
    y = _Collect.apply(z, places.source, places.slot, ragged)
    y = y.unflatten(0, weight.shape)  # (k, t, c)
    if places.kept is not None:
        kept = places.kept.view_as(weight)
        weight = torch.where(kept, weight, 0)
        # Ragged rows beyond the last end may be no numbers, and times 0 they would stay so.
        y = torch.where(kept[..., None], y, 0) if ragged else y
    y = y * weight[..., None].to(y.dtype)
    return y[0] if len(y) == 1 else y.sum(0)


class _Spread(torch.autograd.Function):
    """The gradient of a token is the sum over its k slots: k gathers, no scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, slot: Tensor, kept: Tensor | None) -> Tensor:
        ctx.save_for_backward(slot, kept)
        ctx.tokens = len(x)
        return x.index_select(0, source % len(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slot, kept = ctx.saved_tensors
        dx = grad.index_select(0, slot.clamp(max=len(grad) - 1))
        if kept is not None:
            dx = torch.where(kept[:, None], dx, 0)
        dx = dx.unflatten(0, (-1, ctx.tokens))  # (k, t, c)
        return dx[0] if len(dx) == 1 else dx.sum(0), None, None, None


class _Collect(torch.autograd.Function):
    """The gradient of a slot is that of its pair, and 0 in an empty slot."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, source: Tensor, slot: Tensor, ragged: bool) -> Tensor:
        ctx.save_for_backward(source, slot)
        ctx.slots, ctx.ragged = len(z), ragged
        return z.index_select(0, slot.clamp(max=len(z) - 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, slot = ctx.saved_tensors
        if ctx.ragged:  # every slot holds a pair, so backward is a gather too
            return grad.index_select(0, source), None, None, None
        # Pairs without a slot fall into one row more, which is cut off.
        room = grad.new_zeros(ctx.slots + 1, grad.shape[1])
        return room.index_copy(0, slot, grad)[:-1], None, None, None

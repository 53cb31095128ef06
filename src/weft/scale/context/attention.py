"""Attention under a pattern over a sequence that is split over ranks.

A rank computes the rows of its queries over its keys and over those that it fetches, which are the
ones that the pattern lets some of its queries read (`shards.reading`). They come

    at once   where they are at most a shard: one exchange, one call of the kernel
    in turns  else, as for dense attention: from one rank at a time, each turn a call whose result
              is merged by the log-sum-exp. No more than one foreign shard is ever held; backward
              fetches the keys again and sends their gradients home (a ring)

Queries that read everything go round instead: each rank computes their rows over its own keys, and
the rank that holds them merges the partial results.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weft.kernels.attend.bias import Bias
from weft.kernels.attend.masking import KeyLabels
from weft.kernels.attend.merge import merge
from weft.kernels.dense.reference import expand_heads
from weft.patterns import Pattern
from weft.patterns.region import Ints
from weft.scale.context.local import AttentionCall, Result, compute
from weft.scale.context.ring import InTurns, Turns
from weft.scale.context.shards import KeyPlan, reading
from weft.scale.context.world import World, tied


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    world: World,
    *,
    keys: World | None = None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> Result:
    """The own queries (b, h, n, d) over the keys and values of all ranks (b, g, n, d).

    `valid` and `segments` (b, n) belong to the own keys. `keys`: another sequence is read, whose
    tokens are split by this world. Gives values (b, h, n, d) and log-sum-exp (b, h, n).
    """
    each = [pattern.head(a, q.shape[1]) for a in range(q.shape[1])]
    labels = _labels(q, valid, segments)
    settings = {"bias": bias, "dropout": dropout, "labels": labels, "keys": keys or world}
    if len(set(each)) == 1:
        return _attend_one(q, k, v, each[0], world, **settings)
    k, v = expand_heads(k, len(each)), expand_heads(v, len(each))
    outs, lses, order = [], [], []
    for one in dict.fromkeys(each):
        own = [a for a, other in enumerate(each) if other == one]
        settings["bias"] = bias and _of_heads(bias, torch.tensor(own, device=q.device))
        out, lse = _attend_one(q[:, own], k[:, own], v[:, own], one, world, **settings)
        outs, lses, order = [*outs, out], [*lses, lse], [*order, *own]
    back = torch.tensor(order, device=q.device).argsort()
    return torch.cat(outs, 1)[:, back], torch.cat(lses, 1)[:, back]


def _of_heads(bias: Bias, index: Tensor) -> Bias:
    return lambda head, i, j: bias(index[head], i, j)


def _labels(q: Tensor, valid: Tensor | None, segments: Tensor | None) -> KeyLabels | None:
    """As `make_labels`, in integers of 32 bits, which travel with the keys."""
    if segments is not None:
        segments = segments.to(torch.int32)
        return KeyLabels(segments, segments if valid is None else segments.masked_fill(~valid, -1))
    if valid is not None:
        keys = valid.to(torch.int32) - 1
        return KeyLabels(keys.new_zeros(len(keys), 1), keys)
    return None


def _attend_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    world: World,
    *,
    keys: World,
    labels: KeyLabels | None,
    bias: Bias | None,
    dropout: float,
) -> Result:
    """All heads under one pattern."""
    call = AttentionCall(pattern, keys.length, bias, q.shape[-1] ** -0.5, dropout)
    plan = reading(pattern, keys.shards)
    rows = world.shards.positions(world.rank)
    narrow = ~np.isin(rows, plan.wide)
    index = None if narrow.all() else torch.as_tensor(np.flatnonzero(narrow), device=q.device)
    own = q if index is None else q.index_select(2, index)
    asks = labels
    if labels is not None and index is not None and labels.queries.shape[1] > 1:
        asks = KeyLabels(labels.queries[:, index], labels.keys)
    out, lse = _narrow_rows(own, k, v, rows[narrow], plan, keys, asks, call)
    if not len(plan.wide):
        return out, lse
    wide = _wide_rows(q, k, v, plan, keys, labels, call)
    order = np.argsort(np.concatenate((np.flatnonzero(narrow), np.flatnonzero(~narrow))))
    back = torch.as_tensor(order, device=q.device)
    out, lse = (
        torch.cat(both, 2).index_select(2, back) for both in zip((out, lse), wide, strict=True)
    )
    return out, lse


def _narrow_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Ints,
    plan: KeyPlan,
    keys: World,
    labels: KeyLabels | None,
    call: AttentionCall,
) -> Result:
    """Queries at these positions over the own keys and those that they read on other ranks."""
    held = keys.shards.positions(keys.rank)
    if plan.turns and call.bias is None:
        asks = None if labels is None else labels.queries
        of_keys = None if labels is None else labels.keys
        turn = Turns(rows, plan, keys, call)
        return InTurns.apply(q, k, v, asks, of_keys, turn)
    width = k.shape[-1]
    came = keys.fetch(torch.cat((k, v), dim=-1), plan.needs)
    positions = np.concatenate((held, keys.fetched(plan.needs[keys.rank])))
    order = np.argsort(positions)
    index = torch.as_tensor(order, device=q.device)
    both = torch.cat((torch.cat((k, v), dim=-1), came), dim=2).index_select(2, index)
    if labels is not None:
        other = keys.fetch(labels.keys[..., None], plan.needs)[..., 0]
        labels = KeyLabels(labels.queries, torch.cat((labels.keys, other), 1)[:, index])
    out, lse = compute(
        q, both[..., :width], both[..., width:], rows, positions[order], labels, call
    )
    return tied(out, both), lse


def _wide_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: KeyPlan,
    keys: World,
    labels: KeyLabels | None,
    call: AttentionCall,
) -> Result:
    """The wide queries of this rank (b, h, w, d): their rows over the keys of every rank."""
    shards, rank, mine = keys.shards, keys.rank, plan.wide_of
    places = torch.as_tensor(shards.places(mine[rank], rank), device=q.device)
    own = q.index_select(2, places)
    here = torch.arange(len(mine[rank]))
    sends: list[Tensor | None] = [None if r == rank else here for r in range(shards.ranks)]
    receives = [0 if r == rank else len(mine[r]) for r in range(shards.ranks)]
    others = keys.link.move(own, sends, receives)
    asked = np.concatenate([mine[r] for r in range(shards.ranks) if r != rank] + [mine[rank]])
    order = np.argsort(asked)
    every = torch.cat((others, own), 2).index_select(2, torch.as_tensor(order, device=q.device))
    if labels is not None and labels.queries.shape[1] > 1:
        of_own = labels.queries[:, places]
        of_others = keys.link.move(of_own[..., None], sends, receives)[..., 0]
        of_all = torch.cat((of_others, of_own), 1)[:, torch.as_tensor(order, device=q.device)]
        labels = KeyLabels(of_all, labels.keys)
    held = shards.positions(rank)
    out, lse = compute(every, k, v, asked[order], held, labels, call)
    # Partial rows go home: to each rank its own.
    back = torch.cat((out.to(lse.dtype), lse[..., None]), dim=-1)
    homes = [
        torch.as_tensor(np.flatnonzero(np.isin(plan.wide, mine[r]))) for r in range(shards.ranks)
    ]
    count = len(mine[rank])
    came = keys.link.move(back, homes, [count] * shards.ranks)
    parts = [(part[..., :-1], part[..., -1]) for part in came.split(count, dim=2)] if count else []
    if not parts:
        return tied(own, came), tied(own[..., 0].to(lse.dtype), came)
    out, lse = merge(parts)
    return out.to(q.dtype), lse

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

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.attend.bias import Bias
from weft.kernels.attend.masking import KeyLabels
from weft.kernels.attend.merge import merge
from weft.kernels.attend.planner import GATHER_BLOCK, Request, flex_refusal, triton_refusal
from weft.kernels.block_sparse.flex import flex_part
from weft.kernels.block_sparse.gather import gather_attention
from weft.kernels.block_sparse.triton import BLOCKS, block_sparse_part
from weft.kernels.dense.reference import expand_heads
from weft.patterns import Pattern, select
from weft.patterns.lower import Part
from weft.patterns.region import Ints
from weft.scale.context.shards import KeyPlan, reading
from weft.scale.context.world import World, tied

Result = tuple[Tensor, Tensor]


class AttentionCall(NamedTuple):
    """One call of attention: what a kernel needs besides queries, keys and values."""

    pattern: Pattern
    length: int
    bias: Bias | None
    scale: float
    dropout: float


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
        turn = _Turns(rows, plan, keys, call)
        return _InTurns.apply(q, k, v, asks, of_keys, turn)
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


def compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Ints,
    cols: Ints,
    labels: KeyLabels | None,
    call: AttentionCall,
) -> Result:
    """Queries at positions `rows` over keys at positions `cols`, both ascending."""
    if not len(rows) or not len(cols):
        out = tied(q, k, v)
        return out * 0.0, out[..., 0].to(torch.promote_types(q.dtype, torch.float32)) - float("inf")
    part = Part(call.pattern, select(rows), select(cols), call.length)
    request = Request(
        pattern=call.pattern,
        batch=q.shape[0],
        heads=q.shape[1],
        n=len(rows),
        m=len(cols),
        device=q.device.type,
        dtype=q.dtype,
        learning=True,
        masked=labels is not None,
        biased=call.bias is not None,
        dropout=call.dropout,
        lse=True,
        width=q.shape[-1],
    )
    settings: dict[str, Any] = {"scale": call.scale, "labels": labels}
    if triton_refusal(request) is None:
        return block_sparse_part(q, k, v, part, block=BLOCKS[0], dropout=call.dropout, **settings)
    if flex_refusal(request) is None:
        return flex_part(q, k, v, part, block=128, bias=call.bias, **settings)
    settings |= {"block": part.fit(GATHER_BLOCK), "bias": call.bias, "dropout": call.dropout}
    return gather_attention(q, k, v, part, **settings)


class _Turns(NamedTuple):
    """What each turn of a ring does."""

    rows: Ints
    plan: KeyPlan
    keys: World
    call: AttentionCall

    def sources(self) -> list[int]:
        """The rank whose keys arrive in each turn, from the own one on."""
        rank, ranks = self.keys.rank, self.keys.ranks
        return [(rank - turn) % ranks for turn in range(ranks)]

    def between(self, reader: int, holder: int) -> Ints:
        """The positions that one rank reads on another."""
        if reader == holder:
            return self.plan.shards.positions(holder)
        keys = self.plan.needs[reader]
        return keys[self.plan.shards.owners(keys) == holder]

    def swap(self, x: Tensor, turn: int, way: Any) -> Tensor:
        """Rows x (r, w) of this rank -> those that another one sends it in this turn."""
        rank, ranks = self.keys.rank, self.keys.ranks
        to, source = (rank + turn) % ranks, (rank - turn) % ranks
        if way == "home":
            to, source = source, to
        sizes, receives = [0] * ranks, [0] * ranks
        sizes[to] = len(x)
        # Home travels what was fetched before: as many rows as the other one read here.
        reads = (source, rank) if way == "home" else (rank, source)
        receives[source] = len(self.between(*reads))
        return self.keys.link.swap(x, sizes, receives, "backward" if way == "home" else way)

    def sent(self, turn: int) -> Tensor:
        """Where the keys that leave in this turn stand in the own shard."""
        to = (self.keys.rank + turn) % self.keys.ranks
        own = self.between(to, self.keys.rank)
        return torch.as_tensor(self.plan.shards.places(own, self.keys.rank))


class _InTurns(torch.autograd.Function):
    """Merge over turns; backward goes round again and recomputes each turn."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        asks: Tensor | None,
        of_keys: Tensor | None,
        turns: _Turns,
    ) -> Result:
        ctx.turns, ctx.labelled = turns, asks is not None
        ctx.seed = _seed(turns.call.dropout)
        ctx.set_materialize_grads(False)
        result = None
        for turn, (k_now, v_now, labels) in enumerate(
            _arriving(turns, k, v, asks, of_keys, "forward")
        ):
            cols = turns.between(turns.keys.rank, turns.sources()[turn])
            with _replayed(ctx.seed, turn, q.device):
                one = compute(q, k_now, v_now, turns.rows, cols, labels, turns.call)
            result = one if result is None else merge([result, one])
        assert result is not None
        saved = () if asks is None or of_keys is None else (asks, of_keys)
        ctx.save_for_backward(q, k, v, *result, *saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *labels = ctx.saved_tensors
        turns: _Turns = ctx.turns
        asks, of_keys = labels if ctx.labelled else (None, None)
        dout = torch.zeros_like(out) if dout is None else dout
        dq, dboth = torch.zeros_like(q), torch.zeros_like(torch.cat((k, v), -1))
        arriving = _arriving(turns, k, v, asks, of_keys, "backward")
        for turn, (k_now, v_now, seen) in enumerate(arriving):
            cols = turns.between(turns.keys.rank, turns.sources()[turn])
            leaves = [x.detach().requires_grad_() for x in (q, k_now, v_now)]
            own_q, own_k, own_v = leaves
            with torch.enable_grad(), _replayed(ctx.seed, turn, q.device):
                one, one_lse = compute(own_q, own_k, own_v, turns.rows, cols, seen, turns.call)
            grads = _shared_out(one.detach(), one_lse.detach(), out, lse, dout, dlse)
            found = _gradients((one, one_lse), leaves, grads)
            dq += found[0]
            home = torch.cat(found[1:], -1)
            if turn == 0:
                dboth += home
            else:
                index = turns.sent(turn).to(q.device)
                rows = turns.swap(_flat(home), turn, "home")
                dboth.index_add_(2, index, _unflat(rows, dboth))
        dk, dv = dboth.split((k.shape[-1], v.shape[-1]), -1)
        return dq, dk, dv, None, None, None


def _gradients(results: Result, leaves: list[Tensor], grads: Result) -> list[Tensor]:
    """Those of q, k and v; 0 where a turn holds nothing that a query reads."""
    found = torch.autograd.grad(results, leaves, grads, allow_unused=True)
    return [
        torch.zeros_like(leaf) if own is None else own
        for leaf, own in zip(leaves, found, strict=True)
    ]


def _shared_out(
    one: Tensor, one_lse: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> Result:
    """The gradients of one turn's values and log-sum-exp, from those of the merged ones.

    out = Σ_r w_r·out_r,   w_r = exp(lse_r − lse),   so   d lse_r = w_r·(dout·(out_r − out) + dlse)
    """
    dead = one_lse == float("-inf")
    weight = (one_lse - lse.masked_fill(dead, 0.0)).exp()  # (b, h, n), 0 where dead
    slope = (dout * (one - out)).sum(-1).to(weight.dtype)
    slope = slope if dlse is None else slope + dlse.masked_fill(dead, 0.0)
    return (dout * weight[..., None]).to(one.dtype), weight * slope


def _arriving(
    turns: _Turns,
    k: Tensor,
    v: Tensor,
    asks: Tensor | None,
    of_keys: Tensor | None,
    way: Any,
) -> Any:
    """Keys, values and labels, turn by turn: first the own ones."""
    labels = None if asks is None or of_keys is None else KeyLabels(asks, of_keys)
    yield k, v, labels
    both = torch.cat((k, v), dim=-1)
    for turn in range(1, turns.keys.ranks):
        index = turns.sent(turn).to(k.device)
        came = _unflat(turns.swap(_flat(both.index_select(2, index)), turn, way), both)
        if labels is not None:
            leaving = labels.keys.index_select(1, index).T
            own = turns.swap(leaving, turn, way).T
            yield (*came.split((k.shape[-1], v.shape[-1]), -1), KeyLabels(labels.queries, own))
        else:
            yield (*came.split((k.shape[-1], v.shape[-1]), -1), None)


def _flat(x: Tensor) -> Tensor:
    """(b, g, n, d) -> rows (n, b·g·d)."""
    return x.movedim(2, 0).flatten(1)


def _unflat(rows: Tensor, like: Tensor) -> Tensor:
    """Undo `_flat` for tensors shaped like (b, g, _, d)."""
    b, g, _, d = like.shape
    return rows.view(len(rows), b, g, d).movedim(0, 2)


def _seed(dropout: float) -> int | None:
    return int(torch.randint(1 << 62, ())) if dropout else None


class _replayed:
    """Random numbers inside are those of this turn, in both passes; outside, nothing moves."""

    def __init__(self, seed: int | None, turn: int, device: torch.device) -> None:
        devices = [device] if device.type == "cuda" else []
        self.fork = None if seed is None else torch.random.fork_rng(devices)
        self.seed = None if seed is None else seed + turn

    def __enter__(self) -> None:
        if self.fork is not None and self.seed is not None:
            self.fork.__enter__()
            torch.manual_seed(self.seed)

    def __exit__(self, *error: Any) -> None:
        if self.fork is not None:
            self.fork.__exit__(*error)

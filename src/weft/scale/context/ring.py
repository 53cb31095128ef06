"""Keys of all ranks in turns: one foreign shard at a time, in both passes.

Turn t brings what this rank reads of the rank t before it. Results of turns merge by the
log-sum-exp; backward goes round again, recomputes each turn, and sends the gradients of its keys
home.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.attend.masking import KeyLabels
from weft.kernels.attend.merge import merge
from weft.patterns.region import Ints
from weft.scale.context.local import AttentionCall, Result, compute
from weft.scale.context.shards import KeyPlan
from weft.scale.context.world import World


class Turns(NamedTuple):
    """What each turn of a ring does."""

    rows: Ints
    plan: KeyPlan
    keys: World
    call: AttentionCall

    def cols(self, turn: int) -> Ints:
        """The positions of the keys that arrive in a turn; first the own ones."""
        rank = self.keys.rank
        return self.plan.by_holder[rank][(rank - turn) % self.keys.ranks]

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
        reader, holder = reads
        receives[source] = len(self.plan.by_holder[reader][holder])
        return self.keys.link.swap(x, sizes, receives, "backward" if way == "home" else way)

    def sent(self, turn: int) -> Tensor:
        """Where the keys that leave in this turn stand in the own shard."""
        to = (self.keys.rank + turn) % self.keys.ranks
        own = self.plan.by_holder[to][self.keys.rank]
        return torch.as_tensor(self.plan.shards.places(own, self.keys.rank))


class InTurns(torch.autograd.Function):
    """Merge over turns; backward goes round again and recomputes each turn."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        asks: Tensor | None,
        of_keys: Tensor | None,
        turns: Turns,
    ) -> Result:
        ctx.turns, ctx.labelled = turns, asks is not None
        ctx.seed = _seed(turns.call.dropout)
        ctx.set_materialize_grads(False)
        result = None
        for turn, (k_now, v_now, labels) in enumerate(
            _arriving(turns, k, v, asks, of_keys, "forward")
        ):
            cols = turns.cols(turn)
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
        turns: Turns = ctx.turns
        asks, of_keys = labels if ctx.labelled else (None, None)
        dout = torch.zeros_like(out) if dout is None else dout
        dq, dboth = torch.zeros_like(q), torch.zeros_like(torch.cat((k, v), -1))
        arriving = _arriving(turns, k, v, asks, of_keys, "backward")
        for turn, (k_now, v_now, seen) in enumerate(arriving):
            cols = turns.cols(turn)
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
    turns: Turns,
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

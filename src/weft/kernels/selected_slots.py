"""Causal attention to slots: query i reads the slots whose last token is not after it.

A slot stands where its last token stands, so this is the causal pattern over some of the positions,
and the block-sparse kernels run it. There are few slots and many queries, so on the way back every
block of slots is shared out, one query head at a time, and all shares add up in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse import launcher, run_steps
from weft.kernels.block_sparse_lists import Step, lists_of
from weft.kernels.dense import expand_heads
from weft.kernels.dropout import Dropout
from weft.kernels.kept import kept
from weft.patterns import Causal, Order
from weft.patterns.lower import Part
from weft.patterns.order import select

BLOCK = 64  # queries and slots that the kernels take at a time


def attend_slots(
    q: Tensor, k: Tensor, v: Tensor, *, span: int, stride: int, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """q (b, h, n, d), slots (b, g, s, d) -> values (b, h, n, d), log-sum-exp (b, h, n).

    Slot t holds the tokens from t · stride to t · stride + span − 1. A query that has no slot to
    read yet returns 0 and −inf. The log-sum-exp has no gradient.
    """
    sizes = (q.shape[2], k.shape[2], span, stride, BLOCK, q.shape[0] * q.shape[1])
    step, drop = _step(*sizes, q.device), Dropout.of(dropout, q.device, 1)
    return _Slots.apply(q, k, v, step, drop)


@kept(64)
def _step(
    n: int, slots: int, span: int, stride: int, block: int, lines: int, device: torch.device
) -> Step:
    """The visible blocks; every share of a block of slots adds to the sums of that block."""
    part = Part(Causal(), Order(n), select(np.arange(slots) * stride + span - 1), n)
    lists = lists_of(part, block, lines, device)
    column, *rest, _ = lists.shares
    shared = np.arange(-(-slots // block))
    return Step(1, replace(lists, shares=(column, *rest, column), shared=shared), None)


class _Slots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, step: Step, drop: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        out, lse = run_steps(q, k, v, (step,), q.shape[-1] ** -0.5, None, drop)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.step, ctx.drop = step, drop
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: None) -> tuple[Tensor | None, ...]:
        from weft.kernels.block_sparse_triton import key_gradient_kernel, query_gradient_kernel

        q, k, v, out, lse = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        dq, base, delta = torch.empty_like(out), torch.empty_like(lse), torch.empty_like(lse)
        given = (q.shape[-1] ** -0.5, None, ctx.drop, 0)
        launcher(query_gradient_kernel, "dq", ctx.step, q, k, *given)(
            (q, k, v, out, dout, lse, lse, base, delta, dq),
            (q, k, v, out, dout, lse, dq),
            FIRST=True,
            HAS_DLSE=False,
        )
        keys, values = (expand_heads(x, q.shape[1]) for x in (k, v))
        sums = _sums(ctx.step, q)
        tensors = (
            q,
            keys,
            values,
            dout,
            base,
            delta,
            keys,
            values,
        )  # the last two stay as they are
        launcher(key_gradient_kernel, "dkdv", ctx.step, q, keys, *given)(
            (*tensors, sums), (*tensors[:5], *tensors[6:]), ADD=False, shared=sums
        )
        return dq, *_summed(sums, k), None, None


def _sums(step: Step, q: Tensor) -> Tensor:
    """Room for the gradients of all slots for each query head: (b, 1, h, blocks, 2, block, d)."""
    (b, h, _, d), lists = q.shape, step.lists
    size = (b, 1, h, len(lists.shared), 2, lists.block, d)
    return torch.zeros(size, dtype=torch.float32, device=q.device)


def _summed(sums: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """dk and dv (b, g, s, d), like k: the query heads that share slots together."""
    (g, slots), sums = k.shape[1:3], sums[:, 0]
    if sums.shape[1] > g:
        sums = sums.unflatten(1, (g, -1)).sum(2)
    both = sums.movedim(3, 0).to(k.dtype, memory_format=torch.contiguous_format)
    dk, dv = both.flatten(3, 4)[..., :slots, :]  # (b, g, s, d) each
    return dk, dv

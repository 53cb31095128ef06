"""Causal attention to slots: query i reads the slots whose last token is not after it.

A slot has the position of its last token, so this is the causal pattern over some of the positions,
and the block-sparse kernels run it. There are few slots and many queries, so the backward pass
shares every block of slots out, one query head at a time, and all shares add up in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse.launch import key_gradients, query_gradients
from weft.kernels.block_sparse.lists import KernelStep, lists_of
from weft.kernels.block_sparse.triton import launch_of, run_steps
from weft.kernels.dense.reference import expand_heads
from weft.kernels.device_cache import device_cache
from weft.kernels.dropout import Dropout
from weft.kernels.launch import unit_stride
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


@device_cache(64)
def _step(
    n: int, slots: int, span: int, stride: int, block: int, lines: int, device: torch.device
) -> KernelStep:
    """The visible blocks; every share of a block of slots adds to the sums of that block."""
    part = Part(Causal(), Order(n), select(np.arange(slots) * stride + span - 1), n)
    lists = lists_of(part, block, lines, device)
    column, *rest, _ = lists.shares
    shared = np.arange(-(-slots // block))
    return KernelStep(1, replace(lists, shares=(column, *rest, column), shared=shared), None)


class _Slots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, step: KernelStep, drop: Dropout | None
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
        q, k, v, out, lse = ctx.saved_tensors
        dout = unit_stride(dout)
        dq, base, delta = torch.empty_like(out), torch.empty_like(lse), torch.empty_like(lse)
        scale, row_sums = q.shape[-1] ** -0.5, {"lse": lse, "base": base, "delta": delta}
        launch = launch_of(ctx.step, q, k, scale, None, ctx.drop)
        query_gradients(launch, v, out, dout, dq, row_sums)
        keys, values = (expand_heads(x, q.shape[1]) for x in (k, v))
        sums = _sums(ctx.step, q)
        launch = launch_of(ctx.step, q, keys, scale, None, ctx.drop)
        given = {"q": q, "k": keys, "v": values, "dout": dout, "base": base, "delta": delta}
        # All shares go into `sums`: nothing is written to keys and values.
        key_gradients(launch, given, keys, values, sums)
        return dq, *_summed(sums, k), None, None


def _sums(step: KernelStep, q: Tensor) -> Tensor:
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

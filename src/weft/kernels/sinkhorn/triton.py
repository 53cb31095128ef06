"""Sinkhorn balancing: positive matrices whose rows and columns are divided by their sums in turn.

    P = softmax over rows of the scores,   then P ← P / column sums,   P ← P / row sums, repeated

The limit is doubly stochastic, a soft permutation. The causal form has entries below the diagonal
only, and a column sum that runs down: row u is divided by what rows up to u hold, so no row depends
on a later one. Sums are taken of logarithms: a column whose entries are all e^−1000 is divided like
any other. On a GPU float32 matrices take one kernel forward and one backward (`kernels.py`),
which work with the entries themselves: there a column below 1e-30 divides nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.launch import on_grid
from weft.kernels.planner.fast import FastKernel, Rule

NOTHING = -1e30  # the logarithm of an entry that may not be; its exponential is 0
TINY = 1e-30  # a sum below it is one of zeros, and divides nothing
TILE = 8192  # numbers of the rows that a program of the kernels holds at a time
WARPS = 8
_WIDEST = 4096  # columns that the kernels take
FUSED = FastKernel("sinkhorn balancing", dtypes=(torch.float32,))


def balance(scores: Tensor, iterations: int, allowed: Tensor | None = None) -> Tensor:
    """(..., u, u) -> (..., u, u), rows sum to 1; `allowed` marks entries that may be above 0.

    In float32 at least, as `causal_balance`.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if can_fuse(scores):
        return fused_balance(scores, iterations, allowed)
    hidden = None if allowed is None else ~allowed
    log = _hidden(_hidden(scores, hidden).log_softmax(-1), hidden)
    for _ in range(iterations):
        log = _hidden(log - log.logsumexp(-2, keepdim=True), hidden)
        log = _hidden(log - log.logsumexp(-1, keepdim=True), hidden)
    return log.exp()


def causal_balance(scores: Tensor, iterations: int) -> Tensor:
    """(..., u, u) -> (..., u, u) below the diagonal; rows sum to 1, but the first is 0."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if can_fuse(scores):
        return fused_balance(scores, iterations, causal=True)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu()
    log = _hidden(_hidden(scores, hidden).log_softmax(-1), hidden)
    for _ in range(iterations):
        sums = log.mT.contiguous().logcumsumexp(-1).mT  # along memory: others wait row by row
        log = _hidden(log - sums, hidden)
        log = _hidden(log - log.logsumexp(-1, keepdim=True), hidden)
    return log.exp()


def _hidden(log: Tensor, hidden: Tensor | None) -> Tensor:
    """A finite stand-in for log 0: a row or column of nothing stays one, and has no NaN."""
    return log if hidden is None else log.masked_fill(hidden, NOTHING)


def can_fuse(scores: Tensor) -> bool:
    """Whether the kernels take these scores (..., u, u)."""
    count = scores.shape[-1]
    few = Rule(0 < count <= _WIDEST, "takes up to 4096 blocks", count)
    return FUSED.takes(scores, rules=(few,))


def fused_balance(
    scores: Tensor, iterations: int, allowed: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """`balance`, or `causal_balance`, by the kernels."""
    return _Balance.apply(scores, iterations, allowed, causal)


class _Balance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, iterations: int, allowed: Tensor | None, causal: bool
    ) -> Tensor:
        from weft.kernels.sinkhorn.kernels import forward_kernel

        scores, u = scores.contiguous(), scores.shape[-1]
        lines = scores.numel() // (u * u)
        kept = iterations if ctx.needs_input_grad[0] else 0  # else each pass writes over the last
        p = scores.new_empty(lines, kept + 1, u, u)
        c = scores.new_empty(lines, max(kept, 1), u if causal else 1, u)
        masked = allowed is not None
        allowed = allowed.expand_as(scores).contiguous() if masked else scores
        slots = [x.stride(1) if kept else 0 for x in (p, c)]
        ctx.sizes = (u, iterations, p.stride(0), slots[0], c.stride(0), slots[1])
        ctx.settings = _settings(u, causal)
        on_grid(forward_kernel, (lines,))(
            scores, allowed, p, c, *ctx.sizes, MASKED=masked, **ctx.settings
        )
        ctx.save_for_backward(p, c)
        return p[:, -1].reshape(scores.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.sinkhorn.kernels import backward_kernel

        p, c = ctx.saved_tensors
        g = grad.clone(memory_format=torch.contiguous_format)
        on_grid(backward_kernel, (len(p),))(g, p, c, *ctx.sizes, **ctx.settings)
        return g, None, None, None


def _settings(u: int, causal: bool) -> dict[str, Any]:
    """How a matrix of u columns is cut."""
    columns = max(16, 1 << (u - 1).bit_length())
    rows = max(2, min(TILE // columns, columns))
    return {"ROWS": rows, "COLS": columns, "CAUSAL": causal, "TINY": TINY, "num_warps": WARPS}

"""A product and its cross-entropy, without the scores of all rows at one time.

    loss_t = log Σ_v exp(x_t·w_v) − x_t·w_{y_t}

Rows are taken in chunks. Forward keeps log Σ exp, one number per row; backward computes the scores
of a chunk again and from them p − onehot(y). Memory O(chunk·v) besides x, w and their gradients;
one product more than the plain way, 4 instead of 3. Products are in the type of x (under autocast:
in its type), sums over the vocabulary and the gradient of w in float32 or wider.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.autocast import product_dtype, without_autocast


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """x (t, c), weight (v, c), targets (t,) -> losses (t,) and the best tokens (t,)."""
    return _LinearCrossEntropy.apply(x, weight, targets, chunk, product_dtype(x))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, chunk: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.chunk, ctx.dtype = chunk, dtype
        matrix, logs, losses, best = weight.to(dtype), [], [], []
        for rows, wanted in zip(x.split(chunk), targets.split(chunk), strict=True):
            scores = _scores(rows, matrix)  # (t, v)
            best.append(scores.argmax(-1))
            logs.append(scores.logsumexp(-1))
            losses.append(logs[-1] - scores.gather(-1, wanted[:, None])[:, 0])
        total = torch.cat(logs) if logs else x.new_zeros(0, dtype=_wide(dtype))
        ctx.save_for_backward(x, weight, targets, total)
        chosen = torch.cat(best) if best else targets.new_zeros(0)
        ctx.mark_non_differentiable(chosen)
        return (torch.cat(losses) if losses else total.clone()), chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, targets, logs = ctx.saved_tensors
        matrix = weight.to(ctx.dtype)
        to_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=logs.dtype)  # (v, c)
        for start in range(0, len(x), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            slope = _scores(x[part], matrix).sub_(logs[part, None]).exp_()  # (t, v)
            slope.scatter_add_(1, targets[part, None], -torch.ones_like(slope[:, :1]))
            slope = slope.mul_(gradient[part, None]).to(ctx.dtype)
            if to_x is not None:
                to_x[part] = slope @ matrix
            to_weight += slope.T @ x[part].to(ctx.dtype)
        return to_x, to_weight.to(weight.dtype), None, None, None


def _scores(rows: Tensor, matrix: Tensor) -> Tensor:
    with without_autocast(rows):
        return (rows.to(matrix.dtype) @ matrix.T).to(_wide(matrix.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)

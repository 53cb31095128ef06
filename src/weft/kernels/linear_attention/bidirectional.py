"""Bidirectional linear attention; its backward pass keeps only features, values and results.

    out_i = Sᵀ q_i / d_i,    d_i = z·q_i + ε,    S = Σ_j k_j v_jᵀ,    z = Σ_j k_j

q and k are features. With h_i = dout_i / d_i and w_i = h_i·out_i the gradients are

    dS = Σ_i q_i h_iᵀ,       dz = −Σ_i w_i q_i,
    dq_i = S h_i − w_i z,    dk_j = dS v_j + dz,    dv_j = dSᵀ k_j

and where a floor holds d_i fixed, w_i = 0. Autograd would keep every step between. The feature
elu(x) + 1 = y is its own derivative as well, dy/dx = min(y, 1), so x is not kept either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.autocast import without_autocast


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 without cancellation: exp(x) below 0, x + 1 above."""
    return _EluPlusOne.apply(x)


def read_both_ways(q: Tensor, k: Tensor, v: Tensor, eps: float, floor: float | None) -> Tensor:
    """Features (b, g, r, f) and (b, g, m, f), values (b, g, m, e) -> (b, g, r, e), in one dtype.

    Sums over tokens are taken in float32 at least; a denominator below `floor` counts as `floor`.
    """
    return _BothWays.apply(q, k, v, eps, floor)


class _EluPlusOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(x.relu())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return dy * y.clamp(max=1)


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, eps: float, floor: float | None
    ) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            values = k.mT @ v  # (b, g, f, e)
            weights = k.sum(-2, dtype=exact).to(q.dtype)[..., None]  # (b, g, f, 1)
            bottom = (q @ weights).to(exact)  # (b, g, r, 1)
            divisor = bottom + eps if floor is None else bottom.clamp(min=floor)
            out = (q @ values / divisor).to(v.dtype)  # (b, g, r, e)
        ctx.fixed = None if floor is None else bottom < floor
        ctx.save_for_backward(q, k, v, values, weights, divisor, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, values, weights, divisor, out = ctx.saved_tensors
        with without_autocast(q):
            h = dout / divisor  # (b, g, r, e)
            w = (h * out).sum(-1, keepdim=True)  # (b, g, r, 1)
            if ctx.fixed is not None:
                w = w.masked_fill(ctx.fixed, 0.0)
            h, w = h.to(q.dtype), w.to(q.dtype)
            dvalues, dweights = q.mT @ h, -(q.mT @ w)  # (b, g, f, e), (b, g, f, 1)
            dq = h @ values.mT - w * weights.mT  # (b, g, r, f)
            dk = v @ dvalues.mT + dweights.mT  # (b, g, m, f)
            dv = k @ dvalues  # (b, g, m, e)
        return dq, dk, dv, None, None

"""Torch's fused CPU attention with its log-sum-exp, differentiable in both.

`torch.nn.functional.scaled_dot_product_attention` hides the log-sum-exp that merging needs, and the
operator underneath treats it as a constant. Its gradient fits into the same backward pass:

    dS = P ∘ (dO Vᵀ − rowsum(dO ∘ O) + dlse)

so a further channel that is 1 in V, dlse in dO and 0 in O adds exactly the missing term.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.launch import unit_stride

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, h, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    `mask` is additive, broadcastable to (b, h, n, m); every row keeps one key or more.
    """
    return _Fused.apply(q, k, v, mask, scale, causal)


def fused_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The forward pass by itself."""
    # The operator assumes a contiguous last axis without checking it.
    q, k, v = (unit_stride(x) for x in (q, k, v))
    return _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)


def fused_backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, given those of the values and of the log-sum-exp."""
    width = v.shape[-1]
    if dlse is not None:
        q, k, out = (F.pad(x, (0, 1)) for x in (q, k, out))
        v = F.pad(v, (0, 1), value=1.0)
        dout = torch.cat((dout, dlse[..., None].to(dout.dtype)), dim=-1)
    q, k, v, out, dout = (unit_stride(x) for x in (q, k, v, out, dout))
    grads = _backward(dout, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
    return tuple(grad[..., :width] for grad in grads)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor]:
        out, lse = fused_forward(q, k, v, mask, scale, causal)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.scale, ctx.causal = scale, causal
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        given = (q, k, v, out, lse, mask, ctx.scale, ctx.causal)
        return *fused_backward(dout, dlse, *given), None, None, None

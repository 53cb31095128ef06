"""Dense attention from the equation: the oracle of every test, in any dtype up to fp64.

    out_i = sum_j p_ij v_j,   p_ij = softmax_j(scale · q_i·k_j + bias_ij) over the j mask allows

A row that may read no key returns 0 with log-sum-exp −inf, never NaN. O(n·m) time and memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d), (b, g, m, e) -> values (b, h, n, e) and log-sum-exp (b, h, n).

    `mask` is True where a query may read a key; `mask` and `bias` broadcast to (b, h, n, m).
    """
    weights, lse = dense_weights(q, k, mask=mask, bias=bias, scale=scale, dropout=dropout)
    return weights.to(v.dtype) @ expand_heads(v, q.shape[1]), lse


def dense_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """p (b, h, n, m) in float32 or wider, and log-sum-exp (b, h, n)."""
    k = expand_heads(k, q.shape[1])
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    work = torch.promote_types(q.dtype, torch.float32)
    # Scaled before the product, which could leave the range of half precision.
    scores = ((q * factor) @ k.transpose(-1, -2)).to(work)  # (b, h, n, m)
    if bias is not None:
        scores = scores + bias.to(work)
    if mask is None:
        weights, lse = scores.softmax(-1), scores.logsumexp(-1)  # (b, h, n, m), (b, h, n)
    else:
        mask = mask.expand_as(scores)  # (b, h, n, m)
        dead = ~mask.any(-1, keepdim=True)
        # A dead row is scored on everything, then zeroed: softmax and its gradient stay finite.
        scores = scores.masked_fill(~(mask | dead), float("-inf"))
        weights = scores.softmax(-1).masked_fill(~mask, 0.0)
        lse = scores.logsumexp(-1).masked_fill(dead.squeeze(-1), float("-inf"))  # (b, h, n)
    return F.dropout(weights, dropout) if dropout else weights, lse


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """(b, g, m, d) -> (b, heads, m, d): query head a reads key head a // (heads / g)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)

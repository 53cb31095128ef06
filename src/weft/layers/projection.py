"""Projections around attention: model width to heads and back, with grouped keys (GQA, MQA).

Grouped: h query heads share g key heads, query head a reads key head a // (h / g)
(Ainslie et al. 2023, https://arxiv.org/abs/2305.13245); g = 1 is multi-query attention.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.kernels.joint import joined

# On a GPU, this many tokens make one wide product faster than several narrow ones.
_WIDE = 1024


class Projections(nn.Module):
    """W_q, W_k, W_v and W_o; `q`, `k`, `v` give (b, heads, n, d), `out` returns to (b, n, c)."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.to_q = nn.Linear(dim, heads * head_dim, bias=bias)
        self.to_k = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.to_v = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.to_out = nn.Linear(heads * head_dim, dim, bias=bias)

    def qkv(self, x: Tensor) -> list[Tensor]:
        """q (b, h, n, d), k and v (b, g, n, d) of one sequence."""
        maps = (self.to_q, self.to_k, self.to_v)
        return [split_heads(y, y.shape[-1] // self.head_dim) for y in side_by_side(x, maps)]

    def q(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, h, n, d)."""
        return split_heads(self.to_q(x), self.heads)

    def k(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, g, n, d)."""
        return split_heads(self.to_k(x), self.kv_heads)

    def v(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, g, n, d)."""
        return split_heads(self.to_v(x), self.kv_heads)

    def out(self, y: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, n, c)."""
        return self.to_out(join_heads(y))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, n, h·d) -> (b, h, n, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(b, h, n, d) -> (b, n, h·d)."""
    return x.transpose(1, 2).flatten(2)


def side_by_side(x: Tensor, maps: tuple[nn.Linear, ...]) -> list[Tensor]:
    """Several linear maps of one x (b, n, c): one product where that is faster."""
    if not x.is_cuda or x.shape[0] * x.shape[1] < _WIDE:
        return [each(x) for each in maps]
    weight = torch.cat([each.weight for each in maps])
    bias = None if maps[0].bias is None else torch.cat([each.bias for each in maps])
    sizes = [each.out_features for each in maps]
    if torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling():
        return list(F.linear(x, weight, bias).split(sizes, dim=-1))
    return list(_SideBySide.apply(x, weight, bias, sizes))


class _SideBySide(torch.autograd.Function):
    """F.linear and split; gradients that lie side by side already are not copied together."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int]
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return F.linear(x, weight, bias).split(sizes, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        joint = joined(grads).flatten(0, 1)  # (b·n, widths)
        dx = (joint @ weight).view_as(x)
        dweight = joint.t() @ x.flatten(0, 1)
        return dx, dweight, joint.sum(0) if ctx.biased else None, None

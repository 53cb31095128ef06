"""Projections around attention: model width to heads and back, with grouped keys (GQA, MQA).

Grouped: h query heads share g key heads, query head a reads key head a // (h / g)
(Ainslie et al. 2023, https://arxiv.org/abs/2305.13245); g = 1 is multi-query attention.
"""

from __future__ import annotations

from torch import Tensor, nn


class Projections(nn.Module):
    """W_q, W_k, W_v and W_o; `q`, `k`, `v` give (b, heads, n, d), `out` returns to (b, n, c)."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.to_q = nn.Linear(dim, heads * head_dim, bias=bias)
        self.to_k = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.to_v = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.to_out = nn.Linear(heads * head_dim, dim, bias=bias)

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

"""Attention from one set of vectors to another, with its projections, and the block around it.

    SetBlock(x, y) = norm(h + relu(W h + b)),   h = norm(x + attention(x, y))

is the multihead attention block of Lee et al. 2018, section 3.1, https://arxiv.org/abs/1810.00825
(residual on x itself, scores divided by √d). `PoolByAttention` is its pooling, section 3.2: learned
seeds read a whole set, so any number of vectors becomes `seeds` of them, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.attend.api import attend
from weft.kernels.dense.reference import dense_attention
from weft.layers.projections.dense import Projections


class CrossAttention(nn.Module):
    """x (b, n, c) reads y (b, m, c): (b, n, c).

    `attend` is what attends; where y is split over processes, another does (weft.scale.context).
    """

    attend: Callable[..., Any] = staticmethod(attend)

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        head_dim = head_dim or dim // heads
        self.project = Projections(dim, heads, kv_heads or heads, head_dim, bias)
        self.dropout = dropout

    def forward(
        self, x: Tensor, y: Tensor, valid: Tensor | None = None, *, plain: bool = False
    ) -> Tensor:
        """`valid` (b, m) is True where y is real; `plain`: from the equation, for tests."""
        q, k, v = self.project.q(x), self.project.k(y), self.project.v(y)
        if plain:
            mask = None if valid is None else valid[:, None, None, :]
            return self.project.out(dense_attention(q, k, v, mask=mask)[0])
        dropout = self.dropout if self.training else 0.0
        return self.project.out(cast(Tensor, self.attend(q, k, v, valid=valid, dropout=dropout)))


class SetBlock(nn.Module):
    """Attention, residual and norm, then one matrix, residual and norm."""

    def __init__(self, attention: CrossAttention, dim: int) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(dim)
        self.hidden = nn.Linear(dim, dim)
        self.last_norm = nn.LayerNorm(dim)

    def forward(
        self, x: Tensor, y: Tensor, valid: Tensor | None = None, *, plain: bool = False
    ) -> Tensor:
        """x (b, n, c) reads y (b, m, c), real where valid (b, m): (b, n, c)."""
        h = self.norm(x + self.attention(x, y, valid, plain=plain))
        return self.last_norm(h + F.relu(self.hidden(h)))


class PoolByAttention(nn.Module):
    """Learned seeds read a set: (b, n, c) -> (b, seeds, c), the same for any order of the set."""

    def __init__(self, dim: int, heads: int, seeds: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if seeds < 1:
            raise WeftError(f"seeds counts the vectors that remain, at least 1; got seeds={seeds}")
        self.seeds = nn.Parameter(nn.init.xavier_uniform_(torch.empty(seeds, dim)))
        self.before = nn.Linear(dim, dim)
        self.block = SetBlock(CrossAttention(dim, heads, dropout=dropout), dim)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """`valid` (b, n) is True where a vector is real."""
        seeds = self.seeds.expand(x.shape[0], -1, -1)
        return self.block(seeds, F.relu(self.before(x)), valid)

"""Synthesised scores: a number per head, reading token i and position j, without any key.

A module computes `module(x, start, m)`: scores (b or 1, h, n, m) of tokens x (b, n, c), the first
of which has index `start`, for positions 0 to m − 1; and `plain(x)`, the same for one sequence
(n, c) from its start, (h, n, n), written from the equation. Positions end at `length`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.layers.projections.dense import split_heads


class DenseScores(nn.Module):
    """S_i = W₂ relu(W₁ x_i + b₁) + b₂."""

    def __init__(self, dim: int, heads: int, head_dim: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.hidden = nn.Linear(dim, heads * head_dim)
        bound = head_dim**-0.5
        self.weight = nn.Parameter(torch.empty(heads, head_dim, length).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(heads, 1, length))

    def forward(self, x: Tensor, start: int, m: int) -> Tensor:
        """(b, n, c) -> (b, h, n, m); `start` is unused."""
        hidden = F.relu(split_heads(self.hidden(x), self.heads))  # (b, h, n, d)
        return hidden @ self.weight[..., :m] + self.bias[..., :m]

    def plain(self, x: Tensor) -> Tensor:
        """(n, c) -> (h, n, n)."""
        hidden = self.hidden(x).relu().unflatten(-1, (self.heads, -1))  # (n, h, d)
        weight, bias = self.weight[..., : len(x)], self.bias[..., : len(x)]
        return torch.einsum("nhd,hdl->hnl", hidden, weight) + bias


class FactorisedDenseScores(nn.Module):
    """S_ij = A_i[j mod a]·B_i[⌊j / a⌋] with A_i and B_i as in DenseScores."""

    def __init__(self, dim: int, heads: int, head_dim: int, length: int) -> None:
        super().__init__()
        self.fine_size = math.isqrt(length - 1) + 1
        coarse_size = -(-length // self.fine_size)
        self.fine = DenseScores(dim, heads, head_dim, self.fine_size)
        self.coarse = DenseScores(dim, heads, head_dim, coarse_size)

    def forward(self, x: Tensor, start: int, m: int) -> Tensor:
        """(b, n, c) -> (b, h, n, m); `start` is unused."""
        fine = self.fine(x, start, self.fine_size)  # (b, h, n, a)
        coarse = self.coarse(x, start, -(-m // self.fine_size))  # (b, h, n, t)
        return (coarse[..., :, None] * fine[..., None, :]).flatten(-2)[..., :m]

    def plain(self, x: Tensor) -> Tensor:
        """(n, c) -> (h, n, n)."""
        scores = []
        for j in range(len(x)):
            at = j % self.fine_size, j // self.fine_size
            pair = (
                self._column(part, x, column)
                for part, column in zip((self.fine, self.coarse), at, strict=True)
            )
            scores.append(math.prod(pair))
        return torch.stack(scores, dim=-1)  # (h, n, n)

    @staticmethod
    def _column(part: DenseScores, x: Tensor, column: int) -> Tensor:
        hidden = part.hidden(x).relu().unflatten(-1, (part.heads, -1))  # (n, h, d)
        return torch.einsum("nhd,hd->hn", hidden, part.weight[..., column]) + part.bias[..., column]


class RandomScores(nn.Module):
    """S = R, learned; or fixed random numbers, if `seed` is given."""

    def __init__(self, heads: int, length: int, seed: int | None = None) -> None:
        super().__init__()
        if seed is None:
            self.table = nn.Parameter(torch.randn(heads, length, length))
        else:
            source = torch.Generator().manual_seed(seed)
            self.register_buffer("table", torch.randn(heads, length, length, generator=source))

    def forward(self, x: Tensor, start: int, m: int) -> Tensor:
        """(b, n, c) -> (1, h, n, m); the values of x are unused."""
        return self.table[None, :, start : start + x.shape[1], :m]

    def plain(self, x: Tensor) -> Tensor:
        """(n, c) -> (h, n, n)."""
        return self.table[:, : len(x), : len(x)]


class FactorisedRandomScores(nn.Module):
    """S = R₁ R₂ᵀ, learned."""

    def __init__(self, heads: int, length: int, rank: int) -> None:
        super().__init__()
        scale = rank**-0.25
        self.left = nn.Parameter(torch.randn(heads, length, rank) * scale)
        self.right = nn.Parameter(torch.randn(heads, length, rank) * scale)

    def forward(self, x: Tensor, start: int, m: int) -> Tensor:
        """(b, n, c) -> (1, h, n, m); the values of x are unused."""
        rows = self.left[None, :, start : start + x.shape[1]]  # (1, h, n, r)
        return rows @ self.right[:, :m].transpose(-1, -2)

    def plain(self, x: Tensor) -> Tensor:
        """(n, c) -> (h, n, n)."""
        n = len(x)
        return torch.einsum("hir,hjr->hij", self.left[:, :n], self.right[:, :n])

"""Latents: a fixed number of learned vectors that read a sequence, then each other.

    LatentBlock(z, y) = h + mlp(norm(h)),    h = z + attention(norm(z), norm(y))
    latents:   z ← LatentBlock(z, x), then `layers` times z ← LatentBlock(z, z);  `repeats` times

(Jaegle et al. 2021, Perceiver, section 3.1, https://arxiv.org/abs/2103.03206.) All repeats
after the first share their weights, as there.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.cross_attention import CrossAttention

INITIAL_STD = 0.02


class LatentBlock(nn.Module):
    """Attention and a two-layer perceptron, norms before both; z reads y, or itself."""

    def __init__(
        self,
        attention: CrossAttention,
        dim: int,
        expansion: int = 1,
        crossing: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.attention, self.residual = attention, residual
        self.norm = nn.LayerNorm(dim)
        self.source_norm = nn.LayerNorm(dim) if crossing else None
        self.mlp_norm = nn.LayerNorm(dim)
        self.to_hidden = nn.Linear(dim, expansion * dim)
        self.from_hidden = nn.Linear(expansion * dim, dim)

    def forward(
        self,
        z: Tensor,
        y: Tensor | None = None,
        valid: Tensor | None = None,
        *,
        plain: bool = False,
    ) -> Tensor:
        """z (b, r, c) reads y (b, m, c), real where valid (b, m): (b, r, c)."""
        query = self.norm(z)
        source = query if self.source_norm is None else self.source_norm(y)
        h = self.attention(query, source, valid, plain=plain)
        h = h + z if self.residual else h
        return h + self.from_hidden(F.gelu(self.to_hidden(self.mlp_norm(h))))


class Latents(nn.Module):
    """(b, n, c) -> (b, latents, c)."""

    def __init__(
        self,
        attention: tuple,
        latents: int,
        layers: int,
        repeats: int = 1,
        expansion: int = 1,
    ) -> None:
        super().__init__()
        if min(latents, repeats, expansion) < 1 or layers < 0:
            raise WeftError(
                "latents, repeats and expansion are at least 1, layers at least 0; got "
                f"latents={latents}, repeats={repeats}, expansion={expansion}, layers={layers}"
            )
        dim = attention[0]
        self.repeats = repeats
        self.start = nn.Parameter(torch.randn(latents, dim) * INITIAL_STD)  # (r, c)
        self.read, self.think = nn.ModuleList(), nn.ModuleList()
        for _ in range(min(repeats, 2)):
            self.read.append(LatentBlock(CrossAttention(*attention), dim, expansion))
            blocks = (
                LatentBlock(CrossAttention(*attention), dim, expansion, crossing=False)
                for _ in range(layers)
            )
            self.think.append(nn.ModuleList(blocks))

    def forward(self, x: Tensor, valid: Tensor | None = None, *, plain: bool = False) -> Tensor:
        """`valid` (b, n) is True where x is real."""
        z = self.start.expand(x.shape[0], -1, -1)  # (b, r, c)
        for repeat in range(self.repeats):
            own = min(repeat, 1)
            z = self.read[own](z, x, valid, plain=plain)
            for block in cast(nn.ModuleList, self.think[own]):
                z = block(z, plain=plain)
        return z

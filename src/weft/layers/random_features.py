"""Random directions for feature maps, drawn from a seed and redrawn only on request.

A draw is a function of (seed, layer, draw): nothing that was computed before changes it, and all
processes of a distributed run draw alike.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RandomDirections(nn.Module):
    """f Gaussian directions per head; `orthogonal`: orthogonal in blocks of d."""

    weight: Tensor

    def __init__(
        self, heads: int, features: int, head_dim: int, *, seed: int, layer: int, orthogonal: bool
    ) -> None:
        super().__init__()
        self.seed, self.layer, self.orthogonal = seed, layer, orthogonal
        self.register_buffer("weight", torch.empty(heads, features, head_dim))  # (g, f, d)
        self.redraw(0)

    @torch.no_grad()
    def redraw(self, draw: int) -> None:
        """Replace the directions by draw number `draw`; a new module has draw 0."""
        number = (self.seed * 1_000_003 + self.layer) * 1_000_003 + draw
        generator = torch.Generator().manual_seed(number % 2**63)
        heads, features, head_dim = self.weight.shape
        drawn = gaussian_directions(
            heads, features, head_dim, generator, orthogonal=self.orthogonal
        )
        self.weight.copy_(drawn)


def gaussian_directions(
    heads: int, features: int, head_dim: int, generator: torch.Generator, *, orthogonal: bool
) -> Tensor:
    """(heads, features, head_dim): each row is Gaussian; orthogonal ones are so in blocks of d."""
    rows = torch.randn(heads, features, head_dim, generator=generator)
    if not orthogonal:
        return rows
    blocks = -(-features // head_dim)
    square = torch.randn(heads, blocks, head_dim, head_dim, generator=generator)
    directions = torch.linalg.qr(square).Q.flatten(1, 2)[:, :features]  # (g, f, d)
    return directions * rows.norm(dim=-1, keepdim=True)

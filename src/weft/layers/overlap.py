"""Compression of overlapping windows: every `stride` tokens one slot of `span` tokens.

    mean   slot_t = mean of x_{ts} ... x_{ts + span − 1}
    mlp    slot_t = W₂ gelu(W₁ [x_{ts} + e_0; ...; x_{ts + span − 1} + e_{span − 1}])

e are learned vectors for the places inside a window. A window that is not full makes no slot.
`span` is a multiple of `stride`: the tokens are cut into strips of `stride`, each strip is
multiplied once for every place that it takes in a window, and W₁ e is a vector of its own.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OverlapKind = Literal["mlp", "mean"]


class OverlapCompression(nn.Module):
    """Windows of keys or values become slots, by the same map in every head."""

    def __init__(self, kind: OverlapKind, span: int, stride: int, head_dim: int) -> None:
        super().__init__()
        self.kind, self.span, self.stride = kind, span, stride
        if kind == "mlp":
            self.places = nn.Parameter(torch.randn(span, head_dim) * 0.02)
            self.first = nn.Linear(span * head_dim, head_dim)
            self.second = nn.Linear(head_dim, head_dim)

    def slots(self, tokens: int) -> int:
        """Full windows among this many tokens."""
        return max(0, (tokens - self.span) // self.stride + 1)

    def forward(self, x: Tensor) -> Tensor:
        """(b, g, m, d) -> (b, g, slots, d)."""
        slots, shares = self.slots(x.shape[2]), self.span // self.stride
        if not slots:
            return x[:, :, :0]
        used = (slots + shares - 1) * self.stride
        x = x if used == x.shape[2] else x[:, :, :used]
        strips = x.unflatten(2, (-1, self.stride))  # (b, g, strips, stride, d)
        if self.kind == "mean":
            work = torch.promote_types(x.dtype, torch.float32)
            sums = strips.sum(3, dtype=work)  # (b, g, strips, d)
            total = sum(sums[:, :, at : at + slots] for at in range(shares))
            return (total / self.span).to(x.dtype)
        weight = self.first.weight.unflatten(1, (shares, -1))  # (d, shares, stride·d)
        each = F.linear(strips.flatten(3), weight.transpose(0, 1).flatten(0, 1))
        each = each.unflatten(-1, (shares, -1))  # (b, g, strips, shares, d)
        hidden = sum(each[:, :, at : at + slots, at] for at in range(shares))
        return self.second(F.gelu(hidden + self.first(self.places.flatten())))

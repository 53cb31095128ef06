"""Compression of overlapping windows: every `stride` tokens one slot of `span` tokens.

    mean   slot_t = mean of x_{ts} ... x_{ts + span − 1}
    mlp    slot_t = W₂ gelu(W₁ [x_{ts} + e_0; ...; x_{ts + span − 1} + e_{span − 1}])

e are learned vectors for the places inside a window. A window that is not full makes no slot.
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
        if not self.slots(x.shape[2]):
            return x[:, :, :0]
        windows = x.unfold(2, self.span, self.stride).transpose(-1, -2)  # (b, g, s, w, d)
        if self.kind == "mean":
            work = torch.promote_types(x.dtype, torch.float32)
            return windows.mean(3, dtype=work).to(x.dtype)
        return self.second(F.gelu(self.first((windows + self.places).flatten(3))))

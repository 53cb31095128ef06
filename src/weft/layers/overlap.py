"""Compression of overlapping windows: every `stride` tokens, `span` tokens become one slot.

    mean   slot_t = mean of x_{ts} ... x_{ts + span − 1}
    mlp    slot_t = W₂ gelu(W₁ [x_{ts} + e_0; ...; x_{ts + span − 1} + e_{span − 1}] + b₁) + b₂

e are learned vectors for the positions inside a window. A window that is not full makes no slot.
`span` is a multiple of `stride`: the tokens are cut into strips of `stride`, each strip is
multiplied once for every position that it has in a window, and W₁ e is computed separately.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
            assert isinstance(total, Tensor)  # `span` has at least one stride
            return (total / self.span).to(x.dtype)
        constant = self.first(
            self.places.flatten()
        )  # (d,), in the dtype of products, which autocast may lower
        strips, weight = (y.to(constant.dtype) for y in (strips.flatten(3), self.first.weight))
        hidden = _Windows.apply(strips, weight, constant)  # (b, g, slots, d)
        return self.second(F.gelu(hidden))


class _Windows(torch.autograd.Function):
    """Strips (b, g, strips, f), a matrix (d, shares·f) and a vector (d,) -> (b, g, slots, d).

    A window is its strips concatenated; it is multiplied by the matrix and the vector is added.
    """

    @staticmethod
    def forward(ctx: Any, strips: Tensor, weight: Tensor, constant: Tensor) -> Tensor:
        rows = strips.flatten(0, 2)  # (b·g·strips, f)
        parts = weight.unflatten(1, (-1, rows.shape[1])).transpose(0, 1)  # (shares, d, f)
        matrix = parts.flatten(0, 1)  # (shares·d, f)
        each = (rows @ matrix.t()).view(*strips.shape[:3], *parts.shape[:2])
        slots = strips.shape[2] - len(parts) + 1
        hidden = each[:, :, :slots, 0] + constant  # (b, g, slots, d)
        for at in range(1, len(parts)):
            hidden += each[:, :, at : at + slots, at]
        ctx.save_for_backward(strips, matrix)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        strips, matrix = ctx.saved_tensors
        slots, d = dout.shape[2:]
        deach = dout.new_zeros(*strips.shape[:3], len(matrix) // d, d)
        for at in range(deach.shape[3]):
            deach[:, :, at : at + slots, at] = dout
        deach = deach.flatten(0, 2).flatten(1)  # (b·g·strips, shares·d)
        dmatrix = deach.t() @ strips.flatten(0, 2)
        dweight = dmatrix.unflatten(0, (-1, d)).transpose(0, 1).flatten(1)  # (d, shares·f)
        return (deach @ matrix).view_as(strips), dweight, dout.sum((0, 1, 2))

"""A learned span per head: a soft mask over distance, as a bias on the scores.

    m_a(x) = clamp((R + z_a − x) / R, 0, 1),    x = |i − j|,    z_a = S·clamp(u_a, 0, 1)
    m e^s / Σ m e^s = softmax(s + log m)

u is learned. Beyond z + R nothing is read, so the largest z bounds the work: `reach` says how far.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weft.layers.positions import PositionScheme

HIDDEN = -1e4  # e to this power is 0 in every precision, and it is finite in float16
SMALLEST = 1e-30  # m is clamped to this before the log


class SoftSpan(PositionScheme):
    """Spans of at most `span` tokens with a ramp, on top of another position scheme."""

    biased = True

    def __init__(
        self, heads: int, *, span: int, ramp: int, start: float, inner: PositionScheme
    ) -> None:
        super().__init__()
        self.span, self.ramp, self.inner = span, ramp, inner
        self.share = nn.Parameter(torch.full((heads,), start))  # u
        self._reach: tuple[tuple, int] | None = None

    def lengths(self) -> Tensor:
        """z (h,), in float32 at least: half precision cannot count thousands of tokens."""
        work = torch.promote_types(self.share.dtype, torch.float32)
        return self.share.to(work).clamp(0.0, 1.0) * self.span

    def weight(self, head: Tensor, distance: Tensor) -> Tensor:
        """(R + z − x) / R, not yet clamped."""
        return (self.lengths()[head] + self.ramp - distance) / self.ramp

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.inner.rotate(x, positions)

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        weight = self.weight(head, (i - j).abs())
        bias = weight.clamp(SMALLEST, 1.0).log().masked_fill(weight <= 0, HIDDEN)
        return bias + self.inner.at(head, i, j) if self.inner.biased else bias

    def reach(self, multiple: int) -> int:
        """Tokens from a query, itself included, within which some head reads, rounded up.

        On a GPU it is copied to the host once per change of the parameter, not at every call.
        """
        share = self.share
        key = (share._version, share.data_ptr(), share.dtype, multiple)
        if share.is_cuda and self._reach is not None and self._reach[0] == key:
            return self._reach[1]
        with torch.no_grad():
            # On the meta device, where a parameter has no value: the most that it can be.
            longest = self.span if share.is_meta else float(self.lengths().max())
            furthest = math.ceil(longest + self.ramp)
        self._reach = key, -(-furthest // multiple) * multiple
        return self._reach[1]

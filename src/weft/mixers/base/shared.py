"""Mixers that group tokens by content: one projection gives queries and keys, another the values.

q_i = rotated W_qk x_i,   v_i = W_v x_i,   groups follow W_qk x_i without positions
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported
from weft.layers.positions import build_positions
from weft.layers.projections.dense import join_heads, side_by_side, split_heads
from weft.mixers.base import Frame, Mixer


class SharedMixer(Mixer):
    """The projections around attention in groups."""

    outside_graphs = True

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__(config, frame)
        self.positions = build_positions(frame.positions, frame.heads, frame.head_dim)
        if self.positions.biased:
            raise Unsupported(
                f"{config.name} reorders the keys of each head, so it takes no bias per pair of "
                f"positions, such as {frame.positions}; use positions=Rope() or None"
            )
        self.to_qk = nn.Linear(frame.dim, frame.heads * frame.head_dim, bias=frame.bias)
        self.to_v = nn.Linear(frame.dim, frame.kv_heads * frame.head_dim, bias=frame.bias)
        self.to_out = nn.Linear(frame.heads * frame.head_dim, frame.dim, bias=frame.bias)

    def project(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), v (b, g, n, d), and what groups follow (b, h, n, d), without gradient."""
        shared, v = side_by_side(x, (self.to_qk, self.to_v))
        shared = split_heads(shared, self.frame.heads)  # (b, h, n, d)
        q = shared
        if self.frame.positions is not None:
            index = torch.arange(start, start + x.shape[1], device=x.device)
            q = self.positions.rotate(shared, index)  # (b, h, n, d)
        return q, split_heads(v, self.frame.kv_heads), shared.detach()

    def out(self, y: Tensor) -> Tensor:
        """(b, h, n, d) -> (b, n, c)."""
        return self.to_out(join_heads(y))


def lengths(x: Tensor, valid: Tensor | None) -> Tensor:
    """(b, n, c) -> how many real tokens each row begins with, (b,)."""
    if valid is None:
        return torch.full(x.shape[:1], x.shape[1], device=x.device)
    return valid.sum(1)

"""Attention with the relative positions of Transformer-XL, and the cutting of segments.

    s_ij = ((q_i + u)·k_j + (q_i + v)·W_R R_{i−j}) / √d,   R_p = [sin(p ω), cos(p ω)]

u and v are learned per head, ω_t = 10000^(−2t/c) (Dai et al. 2019, section 3.3,
https://arxiv.org/abs/1901.02860). `cut` and `windows` lay a sequence out in segments, each with
what stands before it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.kernels.dense.reference import expand_heads
from weft.layers.projections.dense import split_heads
from weft.mixers.base import AttentionMixer, Frame


class RelativeAttention(AttentionMixer):
    """Queries, keys, values and distances, each with a projection."""

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions(f"{config.name} has relative positions of its own")
        self.to_r = nn.Linear(frame.dim, frame.heads * frame.head_dim, bias=False)
        self.content_bias = nn.Parameter(torch.randn(frame.heads, frame.head_dim) * 0.02)  # u
        self.distance_bias = nn.Parameter(torch.randn(frame.heads, frame.head_dim) * 0.02)  # v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The queries (b, h, n, d) are the last of the m keys (b, g, m, d) -> (b, h, n, d)."""
        (n, d), m = q.shape[2:], k.shape[2]
        furthest, nearest = m - 1, 0 if self.frame.causal else 1 - n
        distance = torch.arange(furthest, nearest - 1, -1, device=q.device)
        bias = shift(self.by_distance(q + self.distance_bias[:, None], distance), m) * d**-0.5
        return F.scaled_dot_product_attention(
            q + self.content_bias[:, None],
            expand_heads(k, self.frame.heads),
            expand_heads(v, self.frame.heads),
            attn_mask=bias.masked_fill(~mask, float("-inf")),
            dropout_p=self.dropout,
        )

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Segment by segment, each with its cache."""
        self._need_causal()
        outputs = []
        while x.shape[1]:
            room = self.config.segment - state.position % self.config.segment
            y, state = self._step_in_segment(x[:, :room], state)
            outputs.append(y)
            x = x[:, room:]
        return torch.cat(outputs, 1), state

    def _step_in_segment(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`step` for tokens that end at the latest with the segment."""
        raise NotImplementedError(f"{type(self).__name__} has to define _step_in_segment")

    def _kept(self, tokens: int) -> int:
        """How many of the latest tokens are cached as they are: open segment and memory."""
        start = tokens // self.config.segment * self.config.segment
        return tokens - max(0, start - self.config.memory)

    def by_distance(self, q: Tensor, distance: Tensor) -> Tensor:
        """q_i·W_R R_p for queries (b, h, n, d) and distances (p,): (b, h, n, p)."""
        r = sinusoid(distance, self.frame.dim).to(q.dtype)  # (p, c)
        if q.shape[0] * q.shape[2] < q.shape[3]:
            # Few queries, as in decoding, are cheaper to bring to R than R to them.
            weight = self.to_r.weight.unflatten(0, (self.frame.heads, -1))  # (h, d, c)
            return q @ weight @ r.t()
        return q @ split_heads(self.to_r(r)[None], self.frame.heads).transpose(-1, -2)


def sinusoid(distance: Tensor, width: int) -> Tensor:
    """[sin(p ω), cos(p ω)] of distances p (m,), in float64: (m, c)."""
    power = torch.arange(0, width, 2, device=distance.device, dtype=torch.float64) / width
    angle = distance.to(torch.float64)[:, None] * 10_000.0**-power
    return torch.cat((angle.sin(), angle.cos()), -1)[:, :width]


def shift(scores: Tensor, keys: int) -> Tensor:
    """Scores by falling distance (..., n, p) -> by key (..., n, m): row i moves by n − 1 − i.

    Column 0 is the distance from the last query to the first key. What lies beyond the smallest
    distance given is undefined; a mask has to hide it.
    """
    n, p = scores.shape[-2:]
    flat = F.pad(scores, (0, 1)).flatten(-2)  # (..., n·(p + 1))
    return flat[..., n - 1 : n - 1 + n * p].unflatten(-1, (n, p))[..., :keys]


def cut(x: Tensor, size: int, count: int) -> Tensor:
    """(b, h, n, d) -> segments (b·s, h, a, d), the last one filled up with zeros."""
    padded = F.pad(x, (0, 0, 0, size * count - x.shape[2]))
    return padded.unflatten(2, (count, size)).transpose(1, 2).flatten(0, 1)


def windows(x: Tensor, size: int, memory: int, count: int) -> Tensor:
    """(b, h, n, d) -> the `memory` tokens before each segment (b·s, h, m, d), zeros before all."""
    if not memory:
        return cut(x, size, count)[:, :, :0]
    padded = F.pad(x, (0, 0, memory, size * count - x.shape[2]))
    before = padded.unfold(2, memory, size)[:, :, :count]
    return before.permute(0, 2, 1, 4, 3).flatten(0, 1)

"""Nyströmformer: the attention matrix from its landmark rows and columns.

    out = softmax(Q K̃ᵀ/√d) · Z · softmax(Q̃ Kᵀ/√d) V + conv(V),    Z ≈ softmax(Q̃ K̃ᵀ/√d)⁺

Q̃ and K̃ are means over `landmarks` equal segments of the real tokens, Z comes from a fixed number of
iterations towards the pseudo-inverse, and conv is a depthwise convolution along the tokens, one
kernel per key head. A row with no more tokens than landmarks is computed exactly: full attention
and the convolution. Padding is in no mean and in no softmax.

Time O(n·r·d + r³), memory O(n·r), r landmarks. Reads both ways only: landmarks mix all tokens.

Paper: Xiong et al. 2021, Nyströmformer, section 3, https://arxiv.org/abs/2102.03902
Differs from it: padding is left out of the landmarks, each matrix has its own first Z (published
code takes one for the batch), any length works, and keys may be grouped.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.kernels.band import tap_sum
from weft.kernels.dense import expand_heads
from weft.kernels.landmarks import (
    ask_tokens,
    iterative_inverse,
    read_landmarks,
    segment_means,
    segments,
)
from weft.layers.compress import hide
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Traits


@MIXERS.register("nystromformer")
@dataclass(frozen=True, kw_only=True)
class Nystromformer:
    """Attention through landmarks."""

    landmarks: int = 64  # segment means
    iterations: int = 6  # towards the inverse
    kernel: int = 33  # taps of the convolution over values, odd; 0: none

    traits: ClassVar[Traits] = Traits(
        family="low rank",
        paper="Xiong et al. 2021, https://arxiv.org/abs/2102.03902",
        time="n·r·d + r³",
        memory="n·r",
        note="its landmarks are means over all tokens of one sequence, later ones too",
    )

    def __post_init__(self) -> None:
        for field in ("landmarks", "iterations"):
            if getattr(self, field) < 1:
                raise WeftError(f"{field} is at least 1; got {field}={getattr(self, field)}")
        if self.kernel < 0 or (self.kernel and self.kernel % 2 == 0):
            raise WeftError(
                f"kernel is centred on a token, so it is odd, or 0 for none; got {self.kernel}"
            )

    @staticmethod
    def small() -> Nystromformer:
        """Few landmarks, for tests."""
        return Nystromformer(landmarks=6, kernel=5)

    @staticmethod
    def variants() -> tuple[Nystromformer, ...]:
        """With and without the convolution."""
        return Nystromformer.small(), Nystromformer(landmarks=4, iterations=3, kernel=0)

    def build(self, frame: Frame) -> NystromformerAttention:
        """The module inside this frame."""
        return NystromformerAttention(self, frame)


class NystromformerAttention(AttentionMixer):
    """Three small softmax matrices and a convolution around shared projections."""

    def __init__(self, config: Nystromformer, frame: Frame) -> None:
        super().__init__(config, frame)
        if self.positions.biased:
            raise Unsupported(
                f"a landmark of nystromformer stands for tokens of many distances, so there is "
                f"none to bias; got positions={frame.positions}; use positions=rope"
            )
        self.taps: nn.Parameter | None = None
        if config.kernel:
            bound = config.kernel**-0.5
            taps = torch.empty(frame.kv_heads, config.kernel).uniform_(-bound, bound)
            self.taps = nn.Parameter(taps)  # (g, taps)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """O(n·r): every product has landmarks on one side."""
        if q.shape[2] <= self.config.landmarks:
            y = self._exact(q, k, v, valid)
        else:
            y = self._approximate(q, k, v, valid)
        return y if self.taps is None else y + expand_heads(self.local(hide(v, valid)), q.shape[1])

    def local(self, v: Tensor) -> Tensor:
        """The convolution of each key head along the tokens: (b, g, n, d) -> (b, g, n, d)."""
        return tap_sum(v, self.taps[None, :, None].to(v.dtype), self.config.kernel // 2)

    def _exact(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        mask = None if valid is None else (valid | ~valid.any(1, keepdim=True))[:, None, None]
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)

    def _approximate(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        (b, h, n), r = q.shape[:3], self.config.landmarks
        length = torch.full((b,), n, device=q.device) if valid is None else valid.sum(1)
        length, there = length.clamp(min=1), None
        if valid is None and n % r == 0:
            (q, short_q), (k, short_k) = _with_means(q, r), _with_means(k, r)
        else:
            inside, there = segments(length, n, r)
            short_q, short_k = segment_means(q, inside), segment_means(k, inside)  # (b, _, r, d)
        k, v, short_k = (expand_heads(x, h) for x in (k, v, short_k))
        read = ask_tokens(short_q, k, v, None if valid is None else length)  # (b, h, r, d)
        inverse = self._inverse(short_q, short_k, there)  # (b, h, r, r)
        joined = (inverse @ read.to(inverse.dtype)).to(v.dtype)  # (b, h, r, d)
        y = read_landmarks(q, short_k, joined, there, self.dropout)
        if valid is None:
            return y
        first = (q[:, :, :r], k[:, :, :r], v[:, :, :r], valid[:, :r])
        exact = F.pad(self._exact(*first), (0, 0, 0, n - r))  # (b, h, n, d)
        return torch.where((length <= r)[:, None, None, None], exact, y)

    def _inverse(self, short_q: Tensor, short_k: Tensor, there: Tensor | None) -> Tensor:
        """Z (b, h, r, r) in float32 at least; landmarks that are not there stay by themselves."""
        work = torch.promote_types(short_q.dtype, torch.float32)
        scale = short_q.shape[-1] ** -0.5
        scores = (short_q.to(work) * scale) @ short_k.to(work).transpose(-1, -2)  # (b, h, r, r)
        if there is None:
            return iterative_inverse(scores.softmax(-1), self.config.iterations)
        weights = scores.masked_fill(~there[:, None, None], -torch.inf).softmax(-1)
        alone = torch.eye(there.shape[1], dtype=work, device=there.device)
        weights = torch.where(there[:, None, :, None], weights, alone)
        return iterative_inverse(weights, self.config.iterations)

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Row by row over real tokens, segment by segment."""
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        rows = []
        for row in range(len(q)):
            real = q.shape[2] if valid is None else int(valid[row].sum())
            y = self._plain_row(*(x[row, :, :real] for x in (q, k, v)))  # (h, _, d)
            rows.append(F.pad(y, (0, 0, 0, q.shape[2] - real)))
        return torch.stack(rows)

    def _plain_row(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One row (h, n, d) without padding."""
        (n, d), r = q.shape[1:], self.config.landmarks

        def weigh(a: Tensor, b: Tensor) -> Tensor:
            return (a @ b.transpose(-1, -2) / d**0.5).softmax(-1)

        if n <= r:
            y = weigh(q, k) @ v
        else:
            edges = [-(-s * n // r) for s in range(r + 1)]
            short_q, short_k = (
                torch.stack([x[:, a:b].mean(1) for a, b in pairwise(edges)], 1) for x in (q, k)
            )
            a = weigh(short_q, short_k)
            z = a.transpose(-1, -2) / a.sum(-2).amax(-1)[:, None, None]
            for _ in range(self.config.iterations):
                az = a @ z
                z = (13 * z - 15 * z @ az + 7 * z @ az @ az - z @ az @ az @ az) / 4
            y = weigh(q, short_k) @ z @ (weigh(short_q, k) @ v)
        if self.taps is None:
            return y
        taps = self.taps.repeat_interleave(len(q) // len(self.taps), 0)  # (h, taps)
        reach = self.config.kernel // 2
        near = F.pad(v, (0, 0, reach, reach)).unfold(1, self.config.kernel, 1)  # (h, n, d, taps)
        return y + torch.einsum("hndt,ht->hnd", near, taps)


def _with_means(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Tokens (b, h, n, d), and the means of `count` equal segments of them: (b, h, r, d)."""
    parts = x.unflatten(2, (count, -1))  # (b, h, r, _, d)
    if x.dtype == torch.float16:  # a sum may leave its range
        return x, parts.mean(3)
    # The gradient of a sum is a view, where that of a mean is a copy of the size of x.
    return parts.flatten(2, 3), parts.sum(3, dtype=x.dtype) / parts.shape[3]

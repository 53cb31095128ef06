"""Nyströmformer: the attention matrix from its landmark rows and columns.

    out = softmax(Q K̃ᵀ/√d) · Z · softmax(Q̃ Kᵀ/√d) V + conv(V),    Z ≈ softmax(Q̃ K̃ᵀ/√d)⁺

Q̃ and K̃ are means over `landmarks` equal segments of the real tokens, Z comes from a fixed number of
iterations towards the pseudo-inverse, and conv is a depthwise convolution along the tokens, one
kernel per key head. A row with no more tokens than landmarks is computed exactly: full attention
and the convolution. Padding is in no mean and in no softmax.

Time O(n·r·d + r³), memory O(n·r), r landmarks. Reads both ways only: landmarks mix all tokens.

Paper: Xiong et al. 2021, Nyströmformer, section 3, https://arxiv.org/abs/2102.03902
Differs from it: padding is left out of the landmarks, each matrix has its own first Z, any length
works, and keys may be grouped. Published code scales the first Z of a whole batch by its largest
column sum; `shared_start=True` does so with the heads of each row, which is the same for one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError, at_least
from weft.kernels.block_sparse.band import tap_sum
from weft.kernels.dense.reference import expand_heads
from weft.kernels.nystrom.reference import (
    ask_tokens,
    read_landmarks,
    segment_means,
    segments,
    solve,
    with_means,
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
    shared_start: bool = False  # the heads of a row scale their first Z alike

    traits: ClassVar[Traits] = Traits(
        family="low rank",
        paper="Xiong et al. 2021, https://arxiv.org/abs/2102.03902",
        time="n·r·d + r³",
        memory="n·r",
        context_parallel="landmarks and what they read, as sums over the ranks; taps at each "
        "border",
        note="its landmarks are means over all tokens of one sequence, later ones too",
    )

    def __post_init__(self) -> None:
        at_least(1, landmarks=self.landmarks, iterations=self.iterations)
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
        """With and without the convolution, and with a start that heads share."""
        alike = Nystromformer(landmarks=5, iterations=3, kernel=3, shared_start=True)
        return Nystromformer.small(), Nystromformer(landmarks=4, iterations=3, kernel=0), alike

    def build(self, frame: Frame) -> NystromformerAttention:
        return NystromformerAttention(self, frame)


class NystromformerAttention(AttentionMixer):
    """Three small softmax matrices and a convolution around shared projections."""

    outside_graphs = True

    def __init__(self, config: Nystromformer, frame: Frame) -> None:
        super().__init__(config, frame)
        self._refuse_bias(
            "a landmark of nystromformer holds tokens of many distances, so there is none to bias"
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
        (n, r), local, short = (q.shape[2], self.config.landmarks), v, None
        if valid is None and n > r and n % r == 0:
            q, k, v, local, *short = with_means(q, k, v, r)
        y = self._exact(q, k, v, valid) if n <= r else self._approximate(q, k, v, valid, short)
        if self.taps is None:
            return y
        return y + expand_heads(self.local(hide(local, valid), self.taps), q.shape[1])

    def local(self, v: Tensor, taps: Tensor) -> Tensor:
        """The convolution of each key head along the tokens: (b, g, n, d) -> (b, g, n, d)."""
        return tap_sum(v, taps[None, :, None].to(v.dtype), self.config.kernel // 2)

    def _exact(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        mask = None if valid is None else (valid | ~valid.any(1, keepdim=True))[:, None, None]
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)

    def _approximate(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        short: list[Tensor] | None = None,
    ) -> Tensor:
        """q (b, h, n, d), k, v (b, g, n, d), and means of q and k where they are known."""
        (b, h, n), r = q.shape[:3], self.config.landmarks
        length, there = (None if valid is None else valid.sum(1).clamp(min=1)), None
        if short is None:
            whole = torch.full((b,), n, device=q.device) if length is None else length
            inside, there = segments(whole, n, r)
            short = [segment_means(x, inside) for x in (q, k)]
        short_q, short_k = short  # (b, _, r, d)
        k, v, short_k = (expand_heads(x, h) for x in (k, v, short_k))
        read = ask_tokens(short_q, k, v, length)  # (b, h, r, d)
        start = {"shared_start": self.config.shared_start}
        joined = solve(short_q, short_k, read, there, self.config.iterations, **start)
        y = read_landmarks(q, short_k, joined, there, self.dropout)
        if valid is None:
            return y
        first = (q[:, :, :r], k[:, :, :r], v[:, :, :r], valid[:, :r])
        exact = F.pad(self._exact(*first), (0, 0, 0, n - r))  # (b, h, n, d)
        assert length is not None  # there is padding
        return torch.where((length <= r)[:, None, None, None], exact, y)

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
            columns = a.sum(-2).amax(-1)[:, None, None]  # (h, 1, 1)
            columns = columns.amax(0) if self.config.shared_start else columns
            z = a.transpose(-1, -2) / columns
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

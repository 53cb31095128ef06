"""Adaptively sparse attention: each head learns how sparse its weights are, zeros included.

    out_i = Σ_j p_ij v_j,    p_i = α-entmax_j(q_i·k_j / √d)
    α-entmax(s) = [(α − 1) s − τ]₊^{1/(α − 1)},    τ such that it sums to 1
    α = 1 + sigmoid(a),    a learned per head

α → 1 is softmax and full attention, α = 2 is sparsemax. A key whose score is far enough below the
best has weight 0, exactly. A query that may read nothing returns 0. The zeros are known after the
scores alone, so they save no time: O(n²·d), memory O(h·n²), with some ten passes over the scores.
Decoding keeps every key and value.

Paper: Correia et al. 2019, Adaptively Sparse Transformers, section 3,
https://arxiv.org/abs/1909.00015
Differs from it: τ is found by Newton's method instead of bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.reference import expand_heads
from weft.kernels.entmax import CLOSEST, entmax
from weft.mixers.base import MIXERS, AttentionMixer, Frame, Traits
from weft.mixers.base.under_pattern import KeyValueState, PatternAttention
from weft.patterns import Causal, Full


@MIXERS.register("entmax")
@dataclass(frozen=True, kw_only=True)
class Entmax:
    """Dense attention with α-entmax in place of softmax."""

    start: float = 1.5  # α of every head before training, between 1 and 2

    traits: ClassVar[Traits] = Traits(
        family="full",
        paper="Correia et al. 2019, https://arxiv.org/abs/1909.00015",
        time="n²·d",
        memory="h·n²",
        context_parallel="tokens to the ranks of their heads and back (all-to-all)",
        state="2·n·g·d",
        causal=True,
        cross=True,
    )

    def __post_init__(self) -> None:
        if not 1.0 < self.start < 2.0:
            raise WeftError(f"start is between softmax (1) and sparsemax (2); got {self.start}")

    def build(self, frame: Frame) -> EntmaxAttention:
        return EntmaxAttention(self, frame)


class EntmaxAttention(PatternAttention):
    """All scores, normalised by α-entmax."""

    queries_apart = True
    first_rows = AttentionMixer.first_rows  # a pattern's own takes the softmax

    def __init__(self, config: Entmax, frame: Frame) -> None:
        super().__init__(config, frame, Causal() if frame.causal else Full())
        start = torch.full((frame.heads,), config.start - 1.0)
        self.sparsity = nn.Parameter(torch.logit(start))  # a

    def alpha(self) -> Tensor:
        """α of each head (h,), in float32 at least."""
        work = torch.promote_types(self.sparsity.dtype, torch.float32)
        return 1 + torch.sigmoid(self.sparsity.to(work))

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Dense scores, α-entmax, values."""
        n, m = q.shape[2], k.shape[2]
        mask = None if valid is None else valid[:, None, None]  # (b, 1, 1, m)
        if self.frame.causal and not crossing:
            past = torch.ones(n, m, dtype=torch.bool, device=q.device).tril()
            mask = past if mask is None else mask & past
        i, j = torch.arange(n, device=q.device)[:, None], torch.arange(m, device=q.device)
        return self.normalised(q, k, v, mask, (i, j), biased=not crossing)

    def normalised(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        at: tuple[Tensor, Tensor],
        biased: bool = True,
    ) -> Tensor:
        """q (b, h, n, d), k and v (b, g, m, d) at positions (n, 1) and (m,) -> (b, h, n, d)."""
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        work = torch.promote_types(q.dtype, torch.float32)
        scores = ((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)).to(work)  # (b, h, n, m)
        if self.positions.biased and biased:
            scores = scores + dense_bias(self.positions.at, q.shape[1], *at).to(work)
        weights = entmax(scores, self.alpha(), mask)
        weights = F.dropout(weights, self.dropout) if self.dropout else weights
        return weights.to(v.dtype) @ v

    def _from_cache(self, q: Tensor, start: int, state: KeyValueState) -> Tensor:
        """New queries over all keys so far."""
        i = torch.arange(start, start + q.shape[2], device=q.device)[:, None]
        j = torch.arange(state.k.shape[2], device=q.device)
        return self.normalised(q, state.k, state.v, j <= i, (i, j))

    def plain_scores(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, biased: bool = True
    ) -> Tensor:
        """α-entmax by bisection in plain torch, its gradient by one step of Newton's method."""
        heads = q.shape[1]
        scores = q @ expand_heads(k, heads).transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.to(torch.promote_types(q.dtype, torch.float32))
        if self.positions.biased and biased:
            i = torch.arange(q.shape[2], device=q.device)[:, None]
            j = torch.arange(k.shape[2], device=q.device)
            scores = scores + dense_bias(self.positions.at, heads, i, j)
        allowed = allowed.expand_as(scores)
        dead = ~allowed.any(-1, keepdim=True)
        alpha = self.alpha().clamp(min=1 + CLOSEST)[:, None, None]  # (h, 1, 1)
        weights = _plain_entmax(scores, alpha, allowed | dead)
        return weights.masked_fill(~allowed, 0.0).to(v.dtype) @ expand_heads(v, heads)


def _plain_entmax(scores: Tensor, alpha: Tensor, allowed: Tensor) -> Tensor:
    """(b, h, n, m), (h, 1, 1), (b, h, n, m) -> (b, h, n, m)."""
    power = 1 / (alpha - 1)
    x = (scores * (alpha - 1)).masked_fill(~allowed, -torch.inf)

    def newton(tau: Tensor) -> Tensor:
        steep = _power(x - tau, power - 1)
        total = (steep * (x - tau).clamp(min=0)).sum(-1, keepdim=True)
        return tau + (total - 1) / (power * steep).sum(-1, keepdim=True).detach()

    with torch.no_grad():
        high = x.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(7):
            middle = (low + high) / 2
            enough = _power(x - middle, power).sum(-1, keepdim=True) >= 1
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        for _ in range(5):
            low = newton(low)
    return _power(x - newton(low), power)


def _power(x: Tensor, power: Tensor) -> Tensor:
    """x to a power where x is above 0, else 0, with a finite gradient."""
    return torch.where(x > 0, torch.where(x > 0, x, 1.0) ** power, 0.0)

"""Adaptive span: each head learns how far back it reads.

    out_i = Σ_j a_ij v_j,    a_ij = m(|i − j|) e^{s_ij} / Σ_t m(|i − t|) e^{s_it}
    m(x) = clamp((ramp + z − x) / ramp, 0, 1),    z = span·clamp(u, 0, 1),    u learned per head

s_ij = q_i·k_j / √d. Within z a key counts in full, over the ramp less and less, beyond it not at
all. z learns from the keys on the ramp, so without a ramp it could not. z >= n − 1 is full
attention; ramp = 1 and a whole z are a window of z + 1 tokens. `penalty()` is λ·span·mean(u), the
price of a long span, which a training loop adds to its loss; `advance` puts u back into [0, 1]
after a step.

Time O(n·w·d), memory O(n·w), w = the longest z + ramp of the layer: what the heads have learned,
not what they might. Decoding keeps the last w keys and values.

Paper: Sukhbaatar et al. 2019, Adaptive Attention Span in Transformers, section 2,
https://arxiv.org/abs/1905.07799
Differs from it: a token may read itself, and positions are the frame's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.errors import WeftError, at_least
from weft.kernels.attend.api import attend
from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.reference import expand_heads
from weft.layers.span import SoftSpan
from weft.mixers.base import MIXERS, Frame, State, Traits
from weft.mixers.base.under_pattern import KeyValueState, PatternAttention
from weft.patterns import Causal, Pattern, Sliding

STEPS = 32  # windows are multiples of this many tokens, so that a growing span plans seldom


@MIXERS.register("adaptive_span")
@dataclass(frozen=True, kw_only=True)
class AdaptiveSpan:
    """Attention over a learned distance."""

    span: int = 8192  # longest span a head can learn
    ramp: int = 32  # tokens over which weights fall from 1 to 0
    start: float = 0.0  # u before training: this share of `span` is read
    penalty: float = 2e-6  # λ, times the mean span in tokens

    traits: ClassVar[Traits] = Traits(
        family="learned pattern",
        paper="Sukhbaatar et al. 2019, https://arxiv.org/abs/1905.07799",
        time="n·w·d",
        memory="n·w",
        context_parallel="keys within the longest span at each border",
        state="2·w·g·d",
        causal=True,
        compiles=False,
        note="its spans are distances within one sequence; its layout is planned outside the graph",
        tensor="its penalty is a mean over all heads",
    )

    def __post_init__(self) -> None:
        at_least(1, span=self.span, ramp=self.ramp)
        if not 0.0 <= self.start <= 1.0:
            raise WeftError(f"start is a share of the span, in [0, 1]; got start={self.start}")
        if self.penalty < 0:
            raise WeftError(f"penalty is the price of a span, at least 0; got {self.penalty}")

    @staticmethod
    def small() -> AdaptiveSpan:
        """Spans that differ between the heads of a test."""
        return AdaptiveSpan(span=60, ramp=6, start=0.3)

    @staticmethod
    def variants() -> tuple[AdaptiveSpan, ...]:
        """Longer spans as well."""
        return AdaptiveSpan.small(), AdaptiveSpan(span=300, ramp=20, start=0.5)

    def build(self, frame: Frame) -> AdaptiveSpanAttention:
        return AdaptiveSpanAttention(self, frame)


class AdaptiveSpanAttention(PatternAttention):
    """A window as wide as the longest span, with the soft mask as a bias."""

    def __init__(self, config: AdaptiveSpan, frame: Frame) -> None:
        super().__init__(config, frame, Sliding(1))
        self.positions = SoftSpan(
            frame.heads,
            span=config.span,
            ramp=config.ramp,
            start=config.start,
            inner=self.positions,
        )
        self.pattern = self.reached()

    def reached(self) -> Pattern:
        """The window that holds all spans as they are now."""
        window = Sliding(self.positions.reach(STEPS))
        return Causal() & window if self.frame.causal else window

    def penalty(self) -> Tensor:
        """λ times the mean span in tokens."""
        return self.config.penalty * self.positions.lengths().mean()

    @torch.no_grad()
    def advance(self, step: int) -> None:
        """Spans stay between 0 and `span`."""
        self.positions.share.clamp_(0.0, 1.0)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """The fastest kernel for the present window."""
        self.pattern = self.reached()
        learning = torch.is_grad_enabled() and self.positions.share.requires_grad
        if q.is_cuda and learning and not torch.compiler.is_compiling():
            # FlexAttention has no gradient for a bias that reads a parameter more than once.
            given: dict[str, Any] = {
                "valid": valid,
                "bias": self.positions.at,
                "dropout": self.dropout,
            }
            return attend(q, k, v, self.pattern, **given, kernel="gather")
        return super().attention(q, k, v, valid, crossing)

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """Softmax over the keys with m > 0 of s + log m."""
        n, heads, inner = q.shape[2], q.shape[1], self.positions.inner
        i, j = torch.arange(n, device=q.device)[:, None], torch.arange(n, device=q.device)
        k, v = expand_heads(k, heads), expand_heads(v, heads)
        work = torch.promote_types(q.dtype, torch.float32)
        scores = (q @ k.transpose(-1, -2)).to(work) / q.shape[-1] ** 0.5  # (b, h, n, n)
        if inner.biased:
            scores = scores + dense_bias(inner.at, heads, i, j)
        z = self.config.span * self.positions.share.to(work).clamp(0, 1)[:, None, None]  # (h, 1, 1)
        soft = ((self.config.ramp + z - (i - j).abs()) / self.config.ramp).clamp(0, 1)  # (h, n, n)
        soft = soft.tril() if self.frame.causal else soft
        soft = soft if valid is None else soft * valid[:, None, None]
        unseen = soft == 0  # (h, n, n), or (b, h, n, n)
        scores = scores + soft.masked_fill(unseen, 1.0).log()
        # A query that sees nothing is padding: it reads all, and is 0 in the end.
        weights = scores.masked_fill(unseen & ~unseen.all(-1, keepdim=True), -torch.inf).softmax(-1)
        return weights.to(v.dtype) @ v

    def start(self, batch: int = 1) -> KeyValueState:
        """No keys yet."""
        self.pattern = self.reached()
        return super().start(batch)

    def step(self, x: Tensor, state: KeyValueState) -> tuple[Tensor, State]:
        """The last keys within the longest span."""
        self.pattern = self.reached()
        return super().step(x, state)

    def letters(self, tokens: int) -> dict[str, int]:
        """The longest span with its ramp, as planned."""
        return {"w": self.positions.reach(STEPS)}

    def state_size(self, tokens: int) -> int:
        """Keys and values within the longest span."""
        self.pattern = self.reached()
        return super().state_size(tokens)

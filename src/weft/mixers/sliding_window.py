"""Sliding-window attention: each token reads its neighbours, and the first few tokens (sinks).

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j,   |i − j| < window  or  j < sinks

`window` counts the token itself (the definition in `weft.patterns.sequence`): causal, exactly
`window` tokens are read besides the sinks. window ≥ n is full attention.
Time O(n window c), memory O(n window). Decoding keeps window − 1 + sinks keys, at any length.

Papers: Beltagy et al. 2020, section 3.1, https://arxiv.org/abs/2004.05150; sinks: Xiao et al. 2023,
https://arxiv.org/abs/2309.17453
Differs from StreamingLLM: positions are those of the sequence, not of the cache slots, so that
decoding equals the parallel form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.errors import at_least
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.under_pattern import PatternAttention, pattern_traits
from weft.patterns import Causal, Pattern, Sink, Sliding


@MIXERS.register("sliding_window")
@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Local attention of a fixed reach."""

    window: int = 256  # how far a token reads, itself included
    sinks: int = 0  # first tokens that every token reads

    traits: ClassVar[Traits] = pattern_traits(
        "Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
        time="n w c",
        memory="n w",
        context_parallel="keys within the window at each border, sinks to all",
        state="2·g·d·(window − 1 + sinks)",
        pair="a window pairs",
    )

    def __post_init__(self) -> None:
        at_least(0, sinks=self.sinks)
        self.pattern(causal=False)

    def pattern(self, causal: bool) -> Pattern:
        """Who reads whom."""
        seen = Sliding(self.window)
        if self.sinks:
            seen = seen | Sink(self.sinks)
        return Causal() & seen if causal else seen

    def build(self, frame: Frame) -> PatternAttention:
        return PatternAttention(self, frame, self.pattern(frame.causal))

    @classmethod
    def variants(cls) -> tuple[SlidingWindow, ...]:
        """Settings that the contract suite tests."""
        return cls(window=9), cls(window=16, sinks=3)

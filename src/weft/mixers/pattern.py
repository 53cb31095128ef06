"""Attention under any pattern of the algebra: the user's own mechanism, in one line.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j   over the j that `reads` lets i read

`reads` is an expression such as `sliding(256) | strided(64)`; several, separated by `;`, alternate
over the layers. A causal frame adds `causal &` in front. Time, memory and decoding state follow
from the pattern: `weft pattern EXPRESSION` shows them.

Paper: none of its own. Most fixed patterns are a case of it: `sliding(257) | global(first=64)` is
Longformer's, `causal & (sliding(128) | strided(128))` the Sparse Transformer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.errors import WeftError
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.under_pattern import PatternAttention, pattern_traits
from weft.patterns import Causal, Pattern
from weft.patterns import pattern as parse


@MIXERS.register("pattern")
@dataclass(frozen=True, kw_only=True)
class OwnPattern:
    """Attention under an expression of patterns."""

    reads: str = "sliding(256)"  # who reads whom; "a; b": layers take turns

    traits: ClassVar[Traits] = pattern_traits(
        "none: the algebra of patterns, docs/patterns.md",
        time="visible pairs · c",
        memory="visible blocks",
        context_parallel="the keys that the pattern names on other ranks; rows that read all by "
        "log-sum-exp",
        state="2·g·d·keys",
        pair="a pattern pairs",
    )

    def __post_init__(self) -> None:
        for layer in range(len(self.reads.split(";"))):
            self.pattern(causal=False, layer=layer)

    def pattern(self, causal: bool, layer: int = 0) -> Pattern:
        """Who reads whom in this layer."""
        turns = self.reads.split(";")
        text = turns[layer % len(turns)].strip()
        if not text:
            raise WeftError(f"each turn of reads is a pattern; got an empty one in {self.reads!r}")
        seen = parse(text)
        return Causal() & seen if causal and not seen.causal else seen

    def build(self, frame: Frame) -> PatternAttention:
        return PatternAttention(self, frame, self.pattern(frame.causal, frame.layer))

    @classmethod
    def variants(cls) -> tuple[OwnPattern, ...]:
        """Settings that the contract suite tests."""
        return cls(reads="sliding(5) | strided(8)"), cls(reads="blocked(sliding(2), 16)")

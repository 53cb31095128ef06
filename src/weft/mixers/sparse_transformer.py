"""Sparse Transformer: two sparse patterns, of which any two tokens are two steps apart.

    strided   near: |i − j| < stride              far: (i − j) mod stride = 0
    fixed     near: ⌊i / stride⌋ = ⌊j / stride⌋   far: j mod stride ≥ stride − summary

Integration: `merged` reads the union, `interleaved` alternates the two by layer, `heads` gives
each half of the heads one of them. stride ≈ √n makes the cost O(n √n).
Time O(n (stride + n / stride) c) strided, O(n (stride + summary n / stride) c) fixed.
Decoding keeps every key (strided) or stride + summary · n / stride of them (fixed).

Paper: Child et al. 2019, sections 4.3 and 5.2, https://arxiv.org/abs/1904.10509
Differs from it: also works in both directions; every head shares its summary columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.errors import WeftError
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.under_pattern import PatternAttention, pattern_traits
from weft.patterns import Causal, Columns, Pattern, PerHead, SameBlock, Sliding, Strided


@MIXERS.register("sparse_transformer")
@dataclass(frozen=True, kw_only=True)
class SparseTransformer:
    """Factorised attention, strided for periodic data and fixed for text."""

    kind: Literal["strided", "fixed"] = "strided"
    stride: int = 128
    summary: int = 8  # columns at the end of each stretch that all later tokens read (fixed)
    integration: Literal["merged", "interleaved", "heads"] = "merged"

    @property
    def traits(self) -> Traits:
        """What is kept differs from kind to kind and, interleaved, from layer to layer."""
        state = "2·g·d·n" if self.kind == "strided" else "2·g·d·(stride + summary·n/stride)"
        if self.integration == "interleaved":
            state = "2·g·d·keys"
        return pattern_traits(
            "Child et al. 2019, https://arxiv.org/abs/1904.10509",
            time="n √n c",
            memory="n √n",
            context_parallel="keys of the stretch that a border cuts, and those of strides or "
            "summaries",
            state=state,
            pair="strides pair",
        )

    def __post_init__(self) -> None:
        self.pattern(causal=False, layer=0)

    def pattern(self, causal: bool, layer: int) -> Pattern:
        """Who reads whom in this layer."""
        if self.kind == "strided":
            near, far = Sliding(self.stride), Strided(self.stride)
        else:
            near, far = SameBlock(self.stride), Columns(self.stride, self.summary)
        if causal:
            near, far = Causal() & near, Causal() & far
        if self.integration == "heads":
            return PerHead(near, far)
        if self.integration == "interleaved":
            return (near, far)[layer % 2]
        return near | far

    def build(self, frame: Frame) -> PatternAttention:
        if self.integration == "heads" and frame.heads % 2:
            raise WeftError(
                f"integration='heads' halves the heads; heads={frame.heads} is odd: "
                "use an even number or integration='merged'"
            )
        return PatternAttention(self, frame, self.pattern(frame.causal, frame.layer))

    @classmethod
    def variants(cls) -> tuple[SparseTransformer, ...]:
        """Settings that the contract suite tests."""
        return (
            cls(stride=8),
            cls(kind="fixed", stride=8, summary=2),
            cls(stride=8, integration="heads"),
            cls(kind="fixed", stride=8, summary=2, integration="interleaved"),
        )

"""Block-local attention: the sequence is cut into blocks, and each token reads its own block.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j,   ⌊i / block⌋ = ⌊j / block⌋

With `before` and `after` the neighbouring blocks are read as well. The last block may be short.
Time O(n block c), memory O(n block). Decoding keeps the open block and `before` blocks.

Paper: Liu et al. 2018, section 4.2.4, https://arxiv.org/abs/1801.10198 (local attention)
Differs from Long Range Arena's "local": its blocks were strided sets by an indexing mistake; ours
are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.under_pattern import PatternAttention, pattern_traits
from weft.patterns import BlockNeighbours, Causal, Pattern


@MIXERS.register("block_local")
@dataclass(frozen=True, kw_only=True)
class BlockLocal:
    """Attention within blocks."""

    block: int = 128  # tokens in a block
    before: int = 0  # further blocks read on the left
    after: int = 0  # further blocks read on the right, where not causal

    traits: ClassVar[Traits] = pattern_traits(
        "Liu et al. 2018, https://arxiv.org/abs/1801.10198",
        time="n w c",
        memory="n w",
        context_parallel="keys of the blocks that borders cut",
        state="2·g·d·(before + 1)·block",
    )

    def __post_init__(self) -> None:
        self.pattern(causal=False)

    def pattern(self, causal: bool) -> Pattern:
        """Who reads whom."""
        blocks = BlockNeighbours(self.block, self.before, self.after)
        return Causal() & blocks if causal else blocks

    def build(self, frame: Frame) -> PatternAttention:
        return PatternAttention(self, frame, self.pattern(frame.causal))

    @classmethod
    def variants(cls) -> tuple[BlockLocal, ...]:
        """Settings that the contract suite tests."""
        return cls(block=16), cls(block=5, before=1, after=1)

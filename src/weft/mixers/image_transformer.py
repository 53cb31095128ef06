"""Image Transformer: local attention for pictures, by blocks of a line or by rectangles.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d)) v_j   over the memory of i's block

1d   the memory of a block of `block` tokens is the block and the one before it
2d   the memory of a rectangle is the rectangle, `margin` rows above it and columns on both sides

Both are causal in the order of the sequence; in both directions the memory reaches as far after a
block as before it. In 2d the sequence runs rectangle by rectangle, and raster order inside each:
that is the order of generation (`patterns.Tiles(n, 0, width, *rectangle).positions()` lists its
raster positions). One block, or one rectangle, is full attention.
Time O(n (block + memory) c), memory O(n memory). Decoding keeps the rows that a later rectangle
can still read, or two blocks.

Paper: Parmar et al. 2018, section 3, https://arxiv.org/abs/1802.05751
Differs from it: edges are found by coordinates, not by padding; any length; it may also read
in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.under_pattern import PatternAttention, pattern_traits
from weft.patterns import BlockNeighbours, Causal, Pattern, Rectangles

Kind = Literal["1d", "2d"]


@MIXERS.register("image_transformer")
@dataclass(frozen=True, kw_only=True)
class ImageTransformer:
    """Local attention over a picture."""

    kind: Kind = "2d"
    block: int = 128  # 1d: tokens in a block
    width: int = 32  # 2d: tokens in a row of the picture
    rectangle: tuple[int, int] = (8, 16)  # 2d: rows and tokens across
    margin: tuple[int, int] = (8, 16)  # 2d: rows above, and tokens on either side

    @property
    def traits(self) -> Traits:
        """Two blocks, or the rows of rectangles that a later one reads."""
        (above, _), (rows, _) = self.margin, self.rectangle
        state = "2·g·d·2·block" if self.kind == "1d" else f"2·g·d·{above + rows}·width"
        return pattern_traits(
            "Parmar et al. 2018, https://arxiv.org/abs/1802.05751",
            time="n w c",
            memory="n w",
            context_parallel="keys of the blocks that a border's blocks read",
            state=state,
        )

    def __post_init__(self) -> None:
        self.pattern(causal=False)

    def pattern(self, causal: bool) -> Pattern:
        """Who reads whom."""
        if self.kind == "1d":
            seen: Pattern = BlockNeighbours(self.block, 1, 0 if causal else 1)
        else:
            above, beside = self.margin
            below = 0 if causal else above
            seen = Rectangles(self.width, *self.rectangle, above, beside, below)
        return Causal() & seen if causal else seen

    def build(self, frame: Frame) -> PatternAttention:
        return PatternAttention(self, frame, self.pattern(frame.causal))

    @classmethod
    def small(cls) -> ImageTransformer:
        """Small rectangles, for tests."""
        return cls(width=6, rectangle=(2, 3), margin=(1, 2))

    @classmethod
    def variants(cls) -> tuple[ImageTransformer, ...]:
        """Settings that the contract suite tests."""
        return cls.small(), cls(kind="1d", block=9)

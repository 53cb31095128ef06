"""Full attention: every token reads every token, or every earlier one.

    out_i = sum_j softmax_j(q_i · k_j / sqrt(d) + bias_ij) v_j

Grouped keys (GQA, MQA) with fewer key heads than query heads; positions by RoPE, ALiBi or T5 bias.
Time O(n² c), memory O(n) fused. Decoding keeps every key and value: 2 g d per token.

Paper: Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762
Differs from it: nothing; the baseline of every comparison, computed by torch's fused kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.under_pattern import SEGMENTS, PatternAttention
from weft.patterns import Causal, Full


@MIXERS.register("full")
@dataclass(frozen=True, kw_only=True)
class FullAttention:
    """Dense softmax attention."""

    traits: ClassVar[Traits] = Traits(
        family="dense",
        paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        time="n² c",
        memory="n c",
        context_parallel="keys of all ranks in turn (ring)",
        state="2·g·d·n",
        exact=True,
        causal=True,
        cross=True,
        marks=(SEGMENTS,),
    )

    def build(self, frame: Frame) -> PatternAttention:
        return PatternAttention(self, frame, Causal() if frame.causal else Full())

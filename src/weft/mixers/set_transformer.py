"""Set Transformer: a few learned points read the whole set, and every token reads the points.

    h = SetBlock(I, x),    out_i = attention(x_i, h)        (`layers/cross_attention.py`)

I holds `points` learned vectors. Tokens have no order: permuting them permutes the outputs. With
an order to tell, add positions to the embedding. With a context, the points read that instead.
Time O(n·r·c), memory O(n·r), r points.

Paper: Lee et al. 2018, section 3.1, the induced set attention block, https://arxiv.org/abs/1810.00825
Differs from it: the second block's residual, norm and feed-forward are those of the layer around
it (a post-norm stack "sf" is the paper's).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.errors import at_least
from weft.layers.cross_attention import CrossAttention, SetBlock
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.latent import LatentMixer, attention_sizes


@MIXERS.register("set_transformer")
@dataclass(frozen=True, kw_only=True)
class SetTransformer:
    """Attention through induced points."""

    points: int = 32  # learned vectors through which tokens interact

    traits: ClassVar[Traits] = Traits(
        family="low rank",
        paper="Lee et al. 2018, https://arxiv.org/abs/1810.00825",
        time="n·r·c",
        memory="n·r",
        context_parallel="what points read, as sums over the ranks",
        cross=True,
        note="its points read the whole set before any token reads them",
        tensor="its inducing points pass a layer that reads all channels",
    )

    def __post_init__(self) -> None:
        at_least(1, points=self.points)

    def build(self, frame: Frame) -> InducedAttention:
        return InducedAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[SetTransformer, ...]:
        """Settings that the contract suite tests."""
        return (cls(points=5),)


class InducedAttention(LatentMixer):
    """Points read tokens, tokens read points."""

    def __init__(self, config: SetTransformer, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions("set_transformer reads sets, which have no order")
        sizes = attention_sizes(frame)
        points = torch.empty(config.points, frame.dim)
        self.points = nn.Parameter(nn.init.xavier_uniform_(points))  # (r, c)
        self.gather = SetBlock(CrossAttention(*sizes), frame.dim)
        self.spread = CrossAttention(*sizes)

    def latents_of(self, source: Tensor, real: Tensor | None, *, plain: bool) -> Tensor:
        points = self.points.expand(source.shape[0], -1, -1)
        return self.gather(points, source, real, plain=plain)

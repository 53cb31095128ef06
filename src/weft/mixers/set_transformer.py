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

from weft.errors import Unsupported
from weft.layers.cross_attention import CrossAttention, SetBlock
from weft.mixers.base import MIXERS, Frame, Mixer, Traits
from weft.patterns.sequence import at_least


@MIXERS.register("set_transformer")
@dataclass(frozen=True, kw_only=True)
class SetTransformer:
    """Attention through induced points."""

    points: int = 32  # learned vectors that stand between the tokens

    traits: ClassVar[Traits] = Traits(
        family="low rank",
        paper="Lee et al. 2018, https://arxiv.org/abs/1810.00825",
        time="n·r·c",
        memory="n·r",
        cross=True,
        note="its points read the whole set before any token reads them",
    )

    def __post_init__(self) -> None:
        at_least(1, points=self.points)

    def build(self, frame: Frame) -> InducedAttention:
        """The module."""
        return InducedAttention(self, frame)

    @classmethod
    def variants(cls) -> tuple[SetTransformer, ...]:
        """Settings that the contract suite tests."""
        return (cls(points=5),)


class InducedAttention(Mixer):
    """Points read tokens, tokens read points."""

    def __init__(self, config: SetTransformer, frame: Frame) -> None:
        super().__init__(config, frame)
        if frame.positions is not None:
            raise Unsupported(
                "set_transformer reads sets, which have no order; got "
                f"positions={frame.positions}; use positions=None, or embed positions"
            )
        sizes = (frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias, frame.dropout)
        points = torch.empty(config.points, frame.dim)
        self.points = nn.Parameter(nn.init.xavier_uniform_(points))  # (r, c)
        self.gather = SetBlock(CrossAttention(*sizes), frame.dim)
        self.spread = CrossAttention(*sizes)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Two attentions over few points."""
        return self._through(x, valid, context, context_valid, plain=False)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """The same by dense attention, each row over its real tokens alone."""
        rows = []
        for a in range(len(x)):
            source, real = (x, valid) if context is None else (context, context_valid)
            source = source[a : a + 1] if real is None else source[a : a + 1, : int(real[a].sum())]
            rows.append(self._through(x[a : a + 1], None, source, None, plain=True))
        return torch.cat(rows)

    def _through(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        plain: bool,
    ) -> Tensor:
        source, real = (x, valid) if context is None else (context, context_valid)
        points = self.points.expand(len(x), -1, -1)
        points = self.gather(points, source, real, plain=plain)  # (b, r, c)
        return self.spread(x, points, plain=plain)

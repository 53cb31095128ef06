"""A gate alone: one matrix, multiplied by the sigmoid of another.

    y = (x V + b) ∘ σ(x W + b'),    V, W (c, c)

The gated linear unit with which encoder cells of the Evolved Transformer begin: no hidden width and
no second matrix. Time O(n·c²), parameters 2·c²; decoding stores nothing.

Papers: Dauphin et al. 2016, https://arxiv.org/abs/1612.08083; So et al. 2019, figure 3,
https://arxiv.org/abs/1901.11117
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from weft.feedforward.base import FEEDFORWARDS, FeedForward, FeedForwardTraits
from weft.layers.projections.dense import side_by_side


@FEEDFORWARDS.register("gate")
@dataclass(frozen=True, kw_only=True)
class Gate:
    """One matrix and its gate."""

    traits = FeedForwardTraits(
        summary="one matrix times the sigmoid of another",
        paper="Dauphin et al. 2016, https://arxiv.org/abs/1612.08083",
        parameters="2·c²",
        time="2·c²",
        tensor="it has no hidden units: both matrices give channels of the model",
    )

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> GateFeedForward:
        """`dropout` is unused: there are no hidden units."""
        return GateFeedForward(self, dim, bias)


class GateFeedForward(FeedForward):
    """(x V + b) ∘ σ(x W + b')."""

    def __init__(self, config: Gate, dim: int, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.to_out = nn.Linear(dim, dim, bias=bias)
        self.to_gate = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        y, gate = side_by_side(x, (self.to_out, self.to_gate))
        return y * gate.sigmoid()

"""The plain feed-forward: two matrices with an activation between them, or three with a gate.

    y = act(x W1 + b1) W2 + b2,              W1 (c, h),  W2 (h, c)
    y = (act(x W + b) ∘ (x V + b')) W2 + b2  where `activation` names a gate: glu, geglu, swiglu ...

`hidden` is h as given, for gates too; `two_thirds` is the width of equal parameters. Dropout acts
on the hidden units. Time O(n·c·h), parameters 2·c·h, or 3·c·h with a gate (and biases); decoding
stores nothing.

Paper: Vaswani et al. 2017, section 3.3 (relu, h = 4·c), https://arxiv.org/abs/1706.03762; gates:
Shazeer 2020, https://arxiv.org/abs/2002.05202
Differs from them: the activation is a choice, gelu by default; gates have biases if the rest has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from weft.feedforward.activations import (
    ACTIVATIONS,
    GATES,
    activation_of,
    check_width,
    divided,
    width,
)
from weft.feedforward.base import FEEDFORWARDS, FeedForward, FeedForwardTraits
from weft.layers.projections.dense import side_by_side

__all__ = ["ACTIVATIONS", "Dense", "DenseFeedForward"]


@FEEDFORWARDS.register("dense")
@dataclass(frozen=True, kw_only=True)
class Dense:
    """Two matrices and an activation, or three and a gate."""

    activation: str = "gelu"  # or a gate
    expansion: float = 4  # hidden units per channel
    hidden: int | None = None  # hidden units; None: expansion · dim
    biased: bool | None = None  # matrices have a bias; None: as the rest of the model

    traits = FeedForwardTraits(
        summary="two matrices and an activation, or three and a gate",
        paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        parameters="2·c·h (3·c·h with a gate)",
        time="2·c·h (3·c·h)",
    )

    def __post_init__(self) -> None:
        check_width(self.activation, self.expansion, self.hidden)

    def share(self, dim: int, ways: int) -> Dense:
        """The config of one of `ways` ranks, each with some of the hidden units."""
        return replace(
            self, hidden=divided("hidden", width(self.expansion, self.hidden, dim), ways)
        )

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> DenseFeedForward:
        return DenseFeedForward(self, dim, dropout, bias if self.biased is None else self.biased)


class DenseFeedForward(FeedForward):
    """act(x W1 + b1) W2 + b2, or with a gate."""

    def __init__(self, config: Dense, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.activation = activation_of(config.activation)
        hidden = width(config.expansion, config.hidden, dim)
        self.to_hidden = nn.Linear(dim, hidden, bias=bias)
        self.to_gate = nn.Linear(dim, hidden, bias=bias) if config.activation in GATES else None
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        if self.to_gate is None:
            hidden = self.activation(self.to_hidden(x))
        else:
            gate, value = side_by_side(x, (self.to_gate, self.to_hidden))
            hidden = self.activation(gate) * value
        return self.to_out(self.dropout(hidden))

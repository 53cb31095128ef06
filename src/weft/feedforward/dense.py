"""The plain feed-forward: two matrices with an activation between them.

    y = act(x W1 + b1) W2 + b2,    W1 (c, expansion·c),  W2 (expansion·c, c)

Dropout acts on the hidden units. `gelu` is x·Φ(x); `gelu_tanh` is its tanh form, as in GPT-2.
Time O(n·expansion·c²), parameters 2·expansion·c² (and biases); nothing is kept while decoding.

Paper: Vaswani et al. 2017, section 3.3 (relu, expansion 4), https://arxiv.org/abs/1706.03762
Differs from it: the activation is a choice, gelu by default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward.base import FEEDFORWARDS, FeedForward
from weft.registry import suggest


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)² (So et al. 2021, Primer, https://arxiv.org/abs/2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": F.sigmoid,
    "softplus": F.softplus,
    "squared_relu": squared_relu,
}


@FEEDFORWARDS.register("dense")
@dataclass(frozen=True, kw_only=True)
class Dense:
    """Two matrices and an activation."""

    activation: str = "gelu"
    expansion: float = 4  # hidden units per channel

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise WeftError(
                f"no activation named {self.activation!r}; {suggest(self.activation, ACTIVATIONS)}"
            )
        if not self.expansion > 0:
            raise WeftError(f"expansion is hidden units per channel, above 0; got {self.expansion}")

    def build(self, dim: int, dropout: float = 0.0, bias: bool = True) -> DenseFeedForward:
        """The module for this width."""
        return DenseFeedForward(self, dim, dropout, bias)


class DenseFeedForward(FeedForward):
    """act(x W1 + b1) W2 + b2."""

    def __init__(self, config: Dense, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        hidden = max(1, round(config.expansion * dim))
        self.to_hidden = nn.Linear(dim, hidden, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        return self.to_out(self.dropout(self.activation(self.to_hidden(x))))

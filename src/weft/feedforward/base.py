"""The contract of a feed-forward: a function of each token by itself.

    config.build(dim, dropout, bias) -> FeedForward,    forward(x, valid=)  (b, n, c) -> (b, n, c)

In evaluation row i of the result depends on row i of x alone, so decoding is the same call on the
new tokens; a variant that remembers earlier tokens has `start` and `step`, as a mixer has. `valid`
(b, n) is True where a token is real: a variant that shares something among tokens in training (the
room of experts, statistics) gives none to padding; the others need not look. A module may ask for a
term of the loss by `penalty()` (layers/penalty.py). The module that writes the result is named
`to_out` and has a `weight`: the stack scales it down at initialisation.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from weft.registry import Registry

FEEDFORWARDS = Registry("feed-forward")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a variant is; writes the docs table."""

    summary: str  # one line
    paper: str  # authors, year, address
    parameters: str  # in c channels, h hidden units, e experts
    time: str  # multiplications per token
    tokenwise: bool = True  # tokens share nothing in training either


class FeedForward(nn.Module):
    """Transforms each token by itself."""

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        raise NotImplementedError(f"{type(self).__name__} has to define forward")

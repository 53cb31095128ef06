"""The contract of a feed-forward: a function of each token by itself.

    config.build(dim, dropout, bias) -> FeedForward,    forward(x, valid=)  (b, n, c) -> (b, n, c)

Row i of the result depends on row i of x alone, so decoding is the same call on the new tokens.
`valid` (b, n) is True where a token is real: a variant that shares a budget among tokens (experts)
spends none on padding; the others need not look. The matrix that writes the result is named
`to_out`: the stack scales it down at initialisation.
"""

from __future__ import annotations

from torch import Tensor, nn

from weft.registry import Registry

FEEDFORWARDS = Registry("feed-forward")


class FeedForward(nn.Module):
    """Transforms each token by itself."""

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        raise NotImplementedError(f"{type(self).__name__} has to define forward")

"""The contract of a feed-forward: a function of each token by itself.

    config.build(dim, dropout, bias) -> FeedForward,    forward(x, valid=)  (b, n, c) -> (b, n, c)

In evaluation row i of the result depends on row i of x alone, so decoding is the same call on the
new tokens; a variant with a memory of earlier tokens has `start` and `step`, like a mixer. `valid`
(b, n) is True where a token is real: a variant whose tokens share something in training (capacity
of experts, statistics) excludes padding from it; others ignore `valid`. A module may add a loss
term by `penalty()` (layers/penalty.py). The last module is named `to_out` and has a `weight`: the
stack scales it down at initialisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from weft.registry import Registry

FEEDFORWARDS = Registry("feed-forward")
FeedForwardConfig = Annotated[Any, FEEDFORWARDS]  # a config, a table or a spec string


@dataclass(frozen=True, kw_only=True)
class FeedForwardTraits:
    """Facts about a variant, shown in the table of the docs."""

    summary: str  # one line
    paper: str  # authors, year, address
    parameters: str  # in c channels, h hidden units, e experts
    time: str  # multiplications per token
    tokenwise: bool = True  # tokens share nothing in training either
    # Tensor parallel: what ranks have shares of, "hidden" units or "heads" (the config has
    # `share`), "inside" (of `inner`), "experts" (by ep instead); or else why not.
    tensor: str = "hidden"


class FeedForward(nn.Module):
    """Transforms each token by itself."""

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        raise NotImplementedError(f"{type(self).__name__} has to define forward")

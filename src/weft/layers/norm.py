"""Normalisation of a token's channels, and where a sublayer applies it.

    layer:  (x − mean(x)) / √(var(x) + ε) · g + b      Ba et al. 2016, https://arxiv.org/abs/1607.06450
    rms:    x / √(mean(x²) + ε) · g                    Zhang, Sennrich 2019, https://arxiv.org/abs/1910.07467
    none:   x                                          with residual connections that need none

Place "pre" is x + f(norm(x)), with one more norm after the last sublayer; "post" is
norm(x + f(x)), with one more norm on the embedding (as BERT), because nothing else would bring the
small embedding to the scale of what the first sublayer adds to it. Deep models train more easily
pre (Xiong et al. 2020, https://arxiv.org/abs/2002.04745). "both" is x + norm'(f(norm(x))): two
norms for each sublayer and one after the last (Gemma 3, https://arxiv.org/abs/2503.19786).

`enters` says whether the embedding has a norm where that differs from the place's habit: XLNet is
"post" without one. ModernBERT is "pre" with one, so that its first sublayer needs none of its own
(`first=False`), and its norms have no shift b (`shift=False`), https://arxiv.org/abs/2412.13663.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from weft.config import config
from weft.errors import WeftError


@config
class Norm:
    """Which normalisation, and where; statistics are taken in float32 or wider."""

    kind: Literal["layer", "rms", "none"] = "layer"
    place: Literal["pre", "post", "both"] = "pre"
    eps: float = 1e-5
    enters: bool | None = None  # a norm on the embedding; None: where the place is "post"
    first: bool = True  # a norm before the first sublayer too, where norms stand before them
    shift: bool = True  # kind "layer" adds b; an rms norm never does

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise WeftError(f"eps keeps a constant row finite, so it is positive; got {self.eps}")
        if not self.first and self.place != "pre":
            raise WeftError(
                "first=False leaves out the norm before the first sublayer, so norms stand before "
                f"sublayers (place='pre'); got place={self.place!r}"
            )

    @property
    def on_embedding(self) -> bool:
        """Whether what enters the first sublayer is normalised before."""
        return self.place == "post" if self.enters is None else self.enters

    def build(self, dim: int) -> nn.Module:
        """(..., c) -> (..., c)."""
        if self.kind == "none":
            return nn.Identity()
        if self.kind == "rms":
            return nn.RMSNorm(dim, eps=self.eps)
        return nn.LayerNorm(dim, eps=self.eps, bias=self.shift)

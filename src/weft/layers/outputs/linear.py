"""The plain output: one product with a table.

    scores = h Eᵀ / √c,   E the table of the embedding (tied)
    scores = h Hᵀ,        H a matrix of its own, N(0, 0.02) at the start

`logit_scale` replaces 1 / √c, or 1; `logit_bias` adds a number per token of the vocabulary;
`softcap` t bounds the scores smoothly, t·tanh(scores / t) (Gemma 2,
https://arxiv.org/abs/2408.00118). The last `unscored` ids are only ever read, as the start of a
picture: they have no row in the matrix, and their scores are −∞.

With `chunk`, the loss is fused: scores exist for that many tokens at one time and are recomputed
for the gradient (`weft.kernels.linear_cross_entropy`). Training memory is then
O(chunk·vocab) instead of O(tokens·vocab), for one more product.

Paper (tying): Press, Wolf 2016, https://arxiv.org/abs/1608.05859
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedder
from weft.layers.outputs.base import OUTPUTS, BaseOutput, TableOutput, check_chunk, token_table


@OUTPUTS.register("linear")
@dataclass(frozen=True, kw_only=True)
class Linear(BaseOutput):
    """One matrix over the vocabulary."""

    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all
    logit_scale: float | None = None  # of the product; None: 1 / √c if tied, else 1
    logit_bias: bool = False
    softcap: float | None = None  # scores stay between ± this
    unscored: int = 0  # last ids of the vocabulary that are never predicted

    def __post_init__(self) -> None:
        check_chunk(self.chunk)
        if self.unscored < 0:
            raise WeftError(f"unscored counts ids, 0 or more; got unscored={self.unscored}")
        if self.softcap is not None and not self.softcap > 0:
            raise WeftError(f"softcap bounds the scores, above 0; got softcap={self.softcap}")

    def check(self, embedding: Any, tied: bool) -> None:
        """Tied to a table as wide as the model; some id is scored."""
        if self.unscored and tied:
            raise WeftError(
                "a table that is shared has a row for each id, also for those that are never "
                f"scored; set tied=False, got unscored={self.unscored}"
            )
        if embedding.vocab is not None and self.unscored >= embedding.vocab:
            raise WeftError(
                f"of vocab={embedding.vocab} ids some are scored; got unscored={self.unscored}"
            )
        if tied and embedding.rbf_levels is not None:
            raise WeftError(
                "tied scores use the table of the embedding, and one by rbf_levels has none; "
                "set tied=False"
            )
        if tied and (embedding.factor is not None or embedding.cutoffs):
            raise WeftError(
                "tied linear scores need a table as wide as the model; this embedding has "
                f"factor={embedding.factor} and cutoffs={embedding.cutoffs}: set tied=False, or "
                "take the output factorised(...) or adaptive_softmax(...)"
            )

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> LinearOutput:
        return LinearOutput(self, dim, vocab, tied)


class LinearOutput(TableOutput):
    """h Hᵀ, or h Eᵀ / √c; with a bias and a bound where the config says so."""

    def __init__(self, config: Linear, dim: int, vocab: int, tied: Embedder | None) -> None:
        super().__init__()
        self.config, self.chunk = config, config.chunk
        # Rows of a tied table have norm √c: embedded tokens have unit variance.
        self.scale = None if tied is None else dim**-0.5
        if config.logit_scale is not None:
            self.scale = None if config.logit_scale == 1.0 else config.logit_scale
        scored = vocab - config.unscored
        self.weight = token_table(dim, scored, tied)
        self.bias = nn.Parameter(torch.zeros(scored)) if config.logit_bias else None
        self.softcap = config.softcap

    def features(self, hidden: Tensor) -> Tensor:
        return hidden if self.scale is None else hidden * self.scale

    def scores(self, hidden: Tensor) -> Tensor:
        scores, unscored = super().scores(hidden), self.config.unscored
        return F.pad(scores, (0, unscored), value=-torch.inf) if unscored else scores

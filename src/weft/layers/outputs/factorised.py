"""The factorised output: from the model's width through a bottleneck to the vocabulary.

    scores = (h W) Fᵀ,    W (c, factor),  F (vocab, factor)

Parameters c·factor + vocab·factor instead of vocab·c, and the rank of the scores is at most
`factor`. Tied, W and F are the two factors of the embedding ("factorised and shared").

Paper: Lan et al. 2019, ALBERT, section 3.1, https://arxiv.org/abs/1909.11942; as an output:
Narang et al. 2021, https://arxiv.org/abs/2102.11972
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedder
from weft.layers.outputs.base import INITIAL_STD, OUTPUTS, BaseOutput, TableOutput, check_chunk


@OUTPUTS.register("factorised")
@dataclass(frozen=True, kw_only=True)
class Factorised(BaseOutput):
    """Two matrices with `factor` channels between them."""

    factor: int = 128
    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise WeftError(f"factor is the width of the bottleneck, at least 1; got {self.factor}")
        check_chunk(self.chunk)

    def check(self, embedding: Any, tied: bool) -> None:
        """Tied to an embedding with the same factor."""
        if tied and embedding.sum_norm is not None:
            raise WeftError(
                "an embedding with sum_norm has no second factor to share; take the output "
                f"projected(width={embedding.factor}), or set tied=False"
            )
        if tied and embedding.factor != self.factor:
            raise WeftError(
                "a tied factorised output shares both factors of the embedding, which has the same "
                f"factor; got factor={self.factor} and Embedding(factor={embedding.factor})"
            )

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> FactorisedOutput:
        return FactorisedOutput(self, dim, vocab, tied)


class FactorisedOutput(TableOutput):
    """(h W) Fᵀ."""

    def __init__(self, config: Factorised, dim: int, vocab: int, tied: Embedder | None) -> None:
        super().__init__()
        self.config, self.chunk = config, config.chunk
        if tied is None:
            self.scale = 1.0
            self.waist = nn.Parameter(torch.randn(dim, config.factor) * dim**-0.5)
            self.weight = nn.Parameter(torch.randn(vocab, config.factor) * INITIAL_STD)
        else:
            # Their product has unit variance per channel, see `Embedder`.
            self.scale = dim**-0.5
            self.waist, self.weight = tied.waist, tied.table

    def features(self, hidden: Tensor) -> Tensor:
        return (hidden * self.scale) @ self.waist  # (..., factor)

"""Mixture of softmaxes: several distributions, weighted by the hidden state.

    p = Σ_k π_k softmax(E tanh(W_k h + b_k)),    π = softmax(W_π h)

log p has any rank, where one softmax has at most rank c. Computed as
logsumexp_k(log π_k + log p_k), so that nothing underflows. Costs K products with the table E, and
memory for K times the scores: `chunk` limits the tokens whose scores exist at one time.

Paper: Yang et al. 2017, https://arxiv.org/abs/1711.03953
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedder
from weft.layers.outputs.base import OUTPUTS, BaseOutput, Output, check_chunk, token_table
from weft.layers.outputs.linear import Linear


@OUTPUTS.register("mixture_of_softmaxes")
@dataclass(frozen=True, kw_only=True)
class MixtureOfSoftmaxes(BaseOutput):
    """`parts` softmaxes over one table."""

    parts: int = 15
    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise WeftError(f"parts counts softmaxes, at least 1; got parts={self.parts}")
        check_chunk(self.chunk)

    def check(self, embedding: Any, tied: bool) -> None:
        """Tied to a table as wide as the model."""
        Linear().check(embedding, tied)

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> MixtureOutput:
        return MixtureOutput(self, dim, vocab, tied)


class MixtureOutput(Output):
    """logsumexp_k(log π_k + log softmax(E tanh(W_k h + b_k)))."""

    def __init__(
        self, config: MixtureOfSoftmaxes, dim: int, vocab: int, tied: Embedder | None
    ) -> None:
        super().__init__()
        self.config, self.chunk, self.dim = config, config.chunk, dim
        self.scale = 1.0 if tied is None else dim**-0.5
        self.weight = token_table(dim, vocab, tied)
        self.to_parts = nn.Linear(dim, config.parts * dim)
        self.to_prior = nn.Linear(dim, config.parts, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., c) -> log-probabilities (..., vocab)."""
        parts = self.to_parts(hidden).unflatten(-1, (self.config.parts, self.dim)).tanh()
        scores = F.linear(parts * self.scale, self.weight)  # (..., k, vocab)
        wide = torch.promote_types(scores.dtype, torch.float32)
        prior = self.to_prior(hidden).log_softmax(-1, dtype=wide)  # (..., k)
        return (prior[..., None] + scores.log_softmax(-1, dtype=wide)).logsumexp(-2)

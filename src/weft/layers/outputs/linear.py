"""The plain output: one product with a table.

    scores = h Eᵀ / √c,   E the table of the embedding (tied)
    scores = h Hᵀ,        H a matrix of its own, N(0, 0.02) at the start

With `chunk`, the loss is fused: scores exist for that many tokens at one time and are computed
again for the gradient (`weft.kernels.linear_cross_entropy`). Training memory is then
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
from weft.kernels.linear_cross_entropy import linear_cross_entropy
from weft.layers.outputs.base import INITIAL_STD, OUTPUTS, Output, OutputConfig, check_chunk


@OUTPUTS.register("linear")
@dataclass(frozen=True, kw_only=True)
class Linear(OutputConfig):
    """One matrix over the vocabulary."""

    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all

    def __post_init__(self) -> None:
        check_chunk(self.chunk)

    @property
    def fused(self) -> bool:
        """Whether objectives ask for the loss."""
        return self.chunk is not None

    def check(self, embedding: Any, tied: bool) -> None:
        """Tied to a table as wide as the model."""
        if tied and embedding.bumps is not None:
            raise WeftError(
                "tied scores use the table of the embedding, and one with bumps has none; "
                "set tied=False"
            )
        if tied and (embedding.factor is not None or embedding.cutoffs):
            raise WeftError(
                "tied linear scores need a table as wide as the model; this embedding has "
                f"factor={embedding.factor} and cutoffs={embedding.cutoffs}: set tied=False, or "
                "take the output factorised(...) or adaptive_softmax(...)"
            )

    def build(self, dim: int, vocab: int, tied: nn.Module | None = None) -> LinearOutput:
        """The module."""
        return LinearOutput(self, dim, vocab, tied)


class LinearOutput(Output):
    """h Hᵀ, or h Eᵀ / √c."""

    def __init__(self, config: Linear, dim: int, vocab: int, tied: nn.Module | None) -> None:
        super().__init__()
        self.config, self.chunk = config, config.chunk
        # Rows of a tied table are as long as √c, so that they make a stream of unit variance.
        self.scale = None if tied is None else dim**-0.5
        own = tied is None
        self.weight = nn.Parameter(torch.randn(vocab, dim) * INITIAL_STD) if own else tied.table

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., c) -> (..., vocab)."""
        return F.linear(self._scaled(hidden), self.weight)

    def _rows(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.chunk is None:
            return super()._rows(rows, targets)
        return linear_cross_entropy(self._scaled(rows), self.weight, targets, self.chunk)

    def _scaled(self, hidden: Tensor) -> Tensor:
        return hidden if self.scale is None else hidden * self.scale

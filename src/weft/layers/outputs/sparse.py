"""The sparse output: a factored matrix over the vocabulary.

    scores[s, m] = Σ_i h_i D[s, i] E[i, m] + b[s, m],   the vocabulary in S modules of M = vocab / S

c·(S + vocab / S) + vocab parameters instead of c·vocab, and only those are read for a token; the
number of multiplications is the same. The map, with its two forms for few and many tokens, is in
`weft.layers.projections.multiplicative`. It has no table of tokens, so it cannot be tied. With
`chunk` scores exist for that many tokens at one time in the loss, and are recomputed for the
gradient.

Paper: Jaszczur et al. 2021, section 3.3 (S = 4), https://arxiv.org/abs/2111.12763
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weft.errors import WeftError
from weft.layers.embedding import Embedder
from weft.layers.outputs.base import OUTPUTS, BaseOutput, Output, check_chunk
from weft.layers.projections.multiplicative import Multiply


@OUTPUTS.register("sparse")
@dataclass(frozen=True, kw_only=True)
class SparseLinear(BaseOutput):
    """A factored matrix over the vocabulary."""

    modules: int = 4  # S: divides the vocabulary
    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all

    def __post_init__(self) -> None:
        check_chunk(self.chunk)
        if self.modules < 1:
            raise WeftError(f"modules is at least 1; got modules={self.modules}")

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> SparseOutput:
        return SparseOutput(self, dim, vocab)


class SparseOutput(Output):
    """The factored map as an output."""

    def __init__(self, config: SparseLinear, dim: int, vocab: int) -> None:
        super().__init__()
        self.config, self.chunk = config, config.chunk
        self.map = Multiply(dim, vocab, True, modules=config.modules)

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., c) -> (..., vocab)."""
        return self.map(hidden)

"""An output behind one more layer: the head of masked language models.

    scores = norm(act(h W + b)) Eᵀ + b',    W (c, width),  E (vocab, width)

E is the table of the embedding (tied), whose rows may be narrower than the model, or a table of its
own. Scores are not divided by √c. Time c·width + width·vocab for each token.

Paper: Devlin et al. 2018, appendix C of the published code, https://arxiv.org/abs/1810.04805;
narrower than the model: Lan et al. 2019, ALBERT, https://arxiv.org/abs/1909.11942
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedder
from weft.layers.outputs.base import OUTPUTS, BaseOutput, TableOutput, check_chunk, token_table

# Those that published models have.
BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@OUTPUTS.register("projected")
@dataclass(frozen=True, kw_only=True)
class ProjectedTable(BaseOutput):
    """A matrix, an activation and a norm before the table."""

    width: int | None = None  # of the table's rows; None: the model's
    between: str = "gelu"  # the activation
    norm_eps: float = 1e-12
    hidden_bias: bool = True  # b
    norm_shift: bool = True  # of the norm
    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all

    def __post_init__(self) -> None:
        check_chunk(self.chunk)
        if self.between not in BETWEEN:
            raise WeftError(f"between is one of {', '.join(BETWEEN)}; got {self.between!r}")
        if self.width is not None and self.width < 1:
            raise WeftError(f"width is that of the table, at least 1; got width={self.width}")

    def check(self, embedding: Any, tied: bool) -> None:
        """Tied to a table of the same width."""
        if not tied:
            return
        if embedding.rbf_levels is not None or embedding.cutoffs:
            raise WeftError(
                "tied scores use one table of the embedding; this one has "
                f"rbf_levels={embedding.rbf_levels}, cutoffs={embedding.cutoffs}: set tied=False"
            )
        if embedding.factor != self.width:
            raise WeftError(
                "a tied output is as wide as the table of the embedding; got "
                f"width={self.width} and Embedding(factor={embedding.factor})"
            )

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> ProjectedOutput:
        return ProjectedOutput(self, dim, vocab, tied)


class ProjectedOutput(TableOutput):
    """norm(act(h W + b)) Eᵀ + b'."""

    def __init__(self, config: ProjectedTable, dim: int, vocab: int, tied: Embedder | None) -> None:
        super().__init__()
        self.config, self.chunk = config, config.chunk
        width = config.width or dim
        self.hidden = nn.Linear(dim, width, bias=config.hidden_bias)
        self.between = BETWEEN[config.between]
        self.norm = nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_shift)
        self.weight = token_table(width, vocab, tied)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def features(self, hidden: Tensor) -> Tensor:
        return self.norm(self.between(self.hidden(hidden)))

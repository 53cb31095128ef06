"""The contract of an output: from hidden states to scores over a vocabulary.

    config.build(dim, vocab, tied=None) -> Output
    scores(hidden)                     (..., c) -> (..., vocab), logits or log-probabilities
    loss(hidden, targets, chosen)      (..., c), (...), (...) -> −log p(target), and the best token

softmax(scores) is the distribution over the vocabulary in each case, so a sampler needs nothing
else. `loss` is a separate method because some outputs can compute −log p(target) without ever
holding the scores of all tokens: their configs are `fused`, and objectives then call `loss`.

`tied` is the embedder whose tables an output shares; None gives it tables of its own. The config's
`check` refuses embeddings that it cannot be tied to.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.errors import WeftError
from weft.kernels.linear_cross_entropy import linear_cross_entropy
from weft.layers.embedding import Embedder
from weft.registry import Registry

OUTPUTS = Registry("output")
INITIAL_STD = 0.02


class TokenLoss(NamedTuple):
    """The loss and the prediction of each token."""

    loss: Tensor  # (...), float32 or wider: −log p(target), 0 where a token is not chosen
    best: Tensor  # (...), int64: the most probable token


class BaseOutput:
    """What every config of an output has."""

    name: ClassVar[str]
    chunk: int | None = None  # tokens whose scores exist at one time in the loss; None: all

    @property
    def fused(self) -> bool:
        """Whether objectives call `loss` instead of computing it from the scores."""
        return self.chunk is not None

    def check(self, embedding: Any, tied: bool) -> None:
        """Raise where this output cannot be tied to `embedding`, the trunk's config."""
        if tied:
            raise WeftError(f"the output {self.name!r} has no table to share; set tied=False")

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> Output:
        """The module for this width and vocabulary, sharing tables with the embedder `tied`."""
        raise NotImplementedError(f"{type(self).__name__} has to define build")


OutputConfig = Annotated[BaseOutput, OUTPUTS]  # a config, a table or a spec string


class Output(nn.Module):
    """Hidden states (..., c) -> scores (..., vocab)."""

    chunk: int | None = None  # tokens whose scores exist at one time in `loss`; None: all

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., c) -> (..., vocab): logits or log-probabilities."""
        raise NotImplementedError(f"{type(self).__name__} has to define scores")

    def forward(self, hidden: Tensor) -> Tensor:
        """The scores."""
        return self.scores(hidden)

    def loss(self, hidden: Tensor, targets: Tensor, chosen: Tensor | None = None) -> TokenLoss:
        """−log p(target) and the best token, each (...); `chosen` (...) is True where it counts."""
        rows, wanted = hidden.flatten(0, -2), targets.flatten()  # (t, c), (t,)
        if chosen is not None:
            wanted = wanted.masked_fill(~chosen.flatten(), 0)
        loss, best = self._rows(rows, wanted.long())
        loss, best = loss.view(targets.shape), best.view(targets.shape)
        return TokenLoss(loss if chosen is None else loss.masked_fill(~chosen, 0.0), best)

    def _rows(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The same for rows (t, c) and targets (t,), chunk by chunk."""
        if self.chunk is None or len(rows) <= self.chunk:
            return self._row_losses(rows, targets)
        parts = [
            checkpoint(self._row_losses, part, wanted, use_reentrant=False)
            for part, wanted in zip(rows.split(self.chunk), targets.split(self.chunk), strict=True)
        ]
        losses, best = zip(*parts, strict=True)
        return torch.cat(losses), torch.cat(best)

    def _row_losses(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(rows)  # (t, vocab)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(wide, targets, reduction="none"), scores.detach().argmax(-1)


class TableOutput(Output):
    """cap(features(h) Wᵀ + b) with a table W (vocab, width), cap(s) = t·tanh(s / t) or s.

    Without b and t, chunks of the loss are one fused kernel.
    """

    weight: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self.bias: nn.Parameter | None = None  # (vocab,)
        self.softcap: float | None = None  # t

    def features(self, hidden: Tensor) -> Tensor:
        """(..., c) -> (..., width)."""
        raise NotImplementedError(f"{type(self).__name__} has to define features")

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., c) -> (..., vocab)."""
        scores = F.linear(self.features(hidden), self.weight, self.bias)
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def _rows(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.chunk is None or self.bias is not None or self.softcap is not None:
            return super()._rows(rows, targets)
        return linear_cross_entropy(self.features(rows), self.weight, targets, self.chunk)


def token_table(dim: int, vocab: int, tied: Embedder | None) -> nn.Parameter:
    """The table (vocab, c): the embedder's, or a new one, N(0, 0.02)."""
    return nn.Parameter(torch.randn(vocab, dim) * INITIAL_STD) if tied is None else tied.table


def check_chunk(chunk: int | None) -> None:
    """Refuse chunks without a token."""
    if chunk is not None and chunk < 1:
        raise WeftError(f"chunk counts the tokens scored at one time, at least 1; got {chunk}")

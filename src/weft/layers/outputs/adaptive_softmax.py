"""Adaptive softmax: frequent tokens are scored directly, the rest by cluster.

    p(v) = p_head(v)                                  v in the first cluster
    p(v) = p_head(cluster i) · p_i(v | cluster i)     v in tail i
    head = softmax(h [H; T]ᵀ),   p_i = softmax((h P_i) W_iᵀ),   P_i (c, c / shrink^i)

Tokens are sorted by frequency (`weft.layers.tables.clusters`); clusters end at the cutoffs. The
loss computes a tail only for the tokens whose target is in it. Without projection a tail has
the full width and no P_i. `scores` gives log-probabilities of all tokens, for decoding.

Tied to an adaptive input with the same clusters it shares the tables, and the projections of the
tails (Baevski, Auli 2018, https://arxiv.org/abs/1809.10853).

Paper: Grave et al. 2016, https://arxiv.org/abs/1609.04309
Differs from some implementations: no limit on tokens per tail, beyond which they would be dropped
from the loss: each target counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedder
from weft.layers.outputs.base import OUTPUTS, BaseOutput, Output
from weft.layers.tables.clusters import Clusters


@OUTPUTS.register("adaptive_softmax")
@dataclass(frozen=True, kw_only=True)
class AdaptiveSoftmax(BaseOutput):
    """A head for frequent tokens, and narrower tails for the rest."""

    cutoffs: tuple[int, ...]  # first ranks of the tails
    shrink: int = 4  # each tail is narrower than the one before by this factor
    projects: bool = True  # False: every tail is as wide as the model
    frequent: tuple[int, ...] = ()  # ids that come first; the others follow in order of id

    def __post_init__(self) -> None:
        if not self.cutoffs:
            raise WeftError("an adaptive softmax has at least one cutoff; for none take 'linear'")

    @property
    def fused(self) -> bool:
        """Always: the loss needs only the tails of its targets."""
        return True

    def check(self, embedding: Any, tied: bool) -> None:
        """Tied to an adaptive input with the same clusters."""
        self.clusters(embedding.vocab)
        ours = self.cutoffs, self.shrink, self.frequent
        theirs = embedding.cutoffs, embedding.shrink, embedding.frequent
        if tied and (ours != theirs or not self.projects):
            raise WeftError(
                "a tied adaptive softmax projects its tails and shares the tables of an adaptive "
                "input: the same cutoffs, shrink and frequent, and projects=True. Else set "
                f"tied=False; got {self} and Embedding(cutoffs={embedding.cutoffs}, "
                f"shrink={embedding.shrink})"
            )

    def clusters(self, vocab: int) -> Clusters:
        """Which tokens are in which cluster."""
        return Clusters(
            vocab=vocab, cutoffs=self.cutoffs, shrink=self.shrink, frequent=self.frequent
        )

    def build(self, dim: int, vocab: int, tied: Embedder | None = None) -> AdaptiveSoftmaxOutput:
        return AdaptiveSoftmaxOutput(self, dim, vocab, tied)


class AdaptiveSoftmaxOutput(Output):
    """Log-probabilities by cluster."""

    ranks: Tensor
    ids: Tensor

    def __init__(
        self, config: AdaptiveSoftmax, dim: int, vocab: int, tied: Embedder | None
    ) -> None:
        super().__init__()
        self.config, self.places = config, config.clusters(vocab)
        self.register_buffer("ranks", self.places.ranks(), persistent=False)
        self.register_buffer("ids", self.places.ids(), persistent=False)
        sizes = self.places.sizes
        widths = self.places.widths(dim) if config.projects else [dim] * len(sizes)
        self.scale = 1.0 if tied is None else dim**-0.5
        self.tails = _matrix(len(sizes) - 1, dim)  # scores of the clusters
        if tied is not None:
            self.tables = tied.clusters.tables
            self.waists = nn.ParameterList(list(tied.clusters.waists)[1:])
            return
        self.tables = nn.ParameterList(map(_matrix, sizes, widths))
        narrow = widths[1:] if config.projects else []
        self.waists = nn.ParameterList(_matrix(dim, width) for width in narrow)

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., c) -> log-probabilities (..., vocab)."""
        head = self._head(hidden)
        first = self.places.sizes[0]
        parts = [head[..., :first]]
        for i in range(1, len(self.tables)):
            parts.append(head[..., first + i - 1, None] + self._tail(hidden, i))
        return torch.cat(parts, dim=-1)[..., self.ranks]  # (..., vocab)

    def _row_losses(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        capturing = rows.is_cuda and torch.cuda.is_current_stream_capturing()
        if torch.compiler.is_compiling() or capturing:
            # A graph needs static shapes, and the rows of a cluster are a new number each time.
            found = self.scores(rows)  # (t, vocab)
            return -found.gather(-1, targets[:, None])[:, 0], found.detach().argmax(-1)
        return self._by_cluster(rows, self.ranks[targets])

    def _by_cluster(self, rows: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
        first, head = self.places.sizes[0], self._head(rows)
        own = self.places.cluster_of(ranks)  # (t,)
        place = torch.where(own == 0, ranks, first + own - 1)
        log = head.gather(-1, place[:, None])[:, 0]  # (t,)
        for i in range(1, len(self.tables)):
            inside = (own == i).nonzero()[:, 0]
            if len(inside):
                wanted = ranks[inside] - self.places.starts[i]
                tail = self._tail(rows[inside], i).gather(-1, wanted[:, None])[:, 0]
                log = log.index_add(0, inside, tail)
        return -log, self._best(rows.detach(), head.detach())

    @torch.no_grad()
    def _best(self, rows: Tensor, head: Tensor) -> Tensor:
        """The most probable token of each row; a tail is computed only where it could win."""
        first = self.places.sizes[0]
        log, rank = head[:, :first].max(-1)
        for i in range(1, len(self.tables)):
            may = (head[:, first + i - 1] > log).nonzero()[:, 0]
            if len(may):
                tail, place = self._tail(rows[may], i).max(-1)
                tail = tail + head[may, first + i - 1]
                better = may[tail > log[may]]
                rank[better] = (place + self.places.starts[i])[tail > log[may]]
                log[better] = tail[tail > log[may]]
        return self.ids[rank]

    def _head(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the first cluster's tokens and of the tails."""
        words = F.linear(hidden * self.scale, self.tables[0])
        return _log_softmax(torch.cat((words, F.linear(hidden, self.tails)), dim=-1))

    def _tail(self, hidden: Tensor, i: int) -> Tensor:
        """Log-probabilities within tail i."""
        hidden = hidden * self.scale
        narrow = hidden @ self.waists[i - 1] if self.config.projects else hidden
        return _log_softmax(F.linear(narrow, self.tables[i]))


def _log_softmax(scores: Tensor) -> Tensor:
    return scores.log_softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)

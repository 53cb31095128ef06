"""Permuted language modelling: tokens in a random order, each from those before it in the order.

    loss = −Σ_t log p(x_{z_t} | x_{z_<t}, z_t)   over the last `share` of a random order z

Two streams run through the same layers. Content h_i knows token i and the tokens before it in the
order; the query g_i knows the place i and the tokens before it, so it can be asked for token i. It
starts from one learned vector, the row `vocab` of the embedding, which the task's tokens never use.
The model is an ordinary language model on an encoder: afterwards it reads both ways as usual.

Paper: Yang et al. 2019, XLNet, sections 2.2 and 2.3, https://arxiv.org/abs/1906.08237
Differs from it: no memory of earlier segments and no segment embeddings; relative positions are the
mixer's (`transformer_xl` has XLNet's), and positions added to the embedding work as well.
Mixers: those that can read under masks of pairs, see `weft.mixers.base.masked_mix`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.layers.padding import take
from weft.models import LanguageModel
from weft.models.heads.language_model import LanguageModelModule
from weft.models.stack.streams import read_streams
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric
from weft.objectives.batch import Batch, unmarked
from weft.objectives.causal_lm import summed, token_loss
from weft.objectives.masked_lm import all_real, with_mask_row
from weft.objectives.targets.permutation import (
    ORDERED,
    Permutation,
    permutation,
    places_of,
    seen_at,
)


@OBJECTIVES.register("permuted_lm")
@dataclass(frozen=True, kw_only=True)
class PermutedLM:
    """Cross-entropy of the last tokens of a random order; its score is the accuracy on them."""

    share: float = 1 / 6  # of the order, from its end, that is predicted
    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"
    takes_marks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise WeftError(f"share is a part of the order in (0, 1]; got share={self.share}")

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """A language model on an encoder, with a row for the start of queries."""
        return with_mask_row(self.name, trunk, self.tied, head)

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the predicted tokens, of both documents where rows are pairs."""
        losses = []
        for ids, valid, _ in unmarked(batch, self.name, ORDERED).documents():
            order = permutation(all_real(ids, valid), self.share, generator)
            scores = permuted_scores(model, ids, valid, order)  # (b, p, vocab)
            losses.append(token_loss(scores, ids.gather(1, order.tail), order.real))
        return summed(losses)


def permuted_scores(
    model: LanguageModelModule, ids: Tensor, valid: Tensor | None, order: Permutation
) -> Tensor:
    """Scores of the tail's tokens, each from the tokens before it in the order: (b, p, vocab)."""
    trunk, real = model.trunk, all_real(ids, valid)
    blank = torch.full_like(ids, model.mask)
    content = trunk.embedding(ids, valid=valid)  # (b, n, c)
    queries = take(trunk.embedding(blank, valid=valid), order.tail)  # (b, p, c)
    level = torch.cat((order.rank, order.tail_rank - 1), dim=1)  # (b, n + p)
    places = places_of(real)  # (b, n)
    hidden = read_streams(
        trunk,
        torch.cat((content, queries), dim=1),
        seen=seen_at(level, order.rank.masked_fill(~real, -1), None, order.tail.shape[1]),
        places=torch.cat((places, places.gather(1, order.tail)), dim=1),
        valid=torch.cat((real, order.real), dim=1),
    )  # (b, n + p, c)
    return model.scores(hidden[:, ids.shape[1] :])

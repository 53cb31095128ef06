"""MPNet: masked and permuted language modelling, with all places known.

    loss = −Σ_{t>c} log p(x_{z_t} | x_{z_<t}, M_{z_>c}),   c = n − p,  p = round(share · n)

Like `permuted_lm`, but every row of attention also reads masks in the places of the tokens it does
not know yet (position compensation). So each query sees n places, as it will when the model reads
a whole text. Of the masks 80 % are the mask token, 10 % a random token, 10 % the token itself; the
content and the query stream hold the same ones.

    row                              reads tokens with rank    reads masks with rank
    token that is given, or mask     < c                       ≥ c
    token z_t that is predicted      ≤ t                       > t
    query about z_t                  < t                       ≥ t

Paper: Song et al. 2020, section 2, https://arxiv.org/abs/2004.09297
The release orders whole words, and shuffles the tokens of the tail: `words`. Here tokens are
ordered one by one unless that is asked for.
Mixers: those that can read under masks of pairs, see `weft.mixers.base.masked_mix`. The paper's
positions are Embedding(positions="learned") with Frame(positions=T5Bias()).
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
from weft.objectives.masked_lm import all_real, check_shares, disguised, hiding, with_mask_row
from weft.objectives.targets.permutation import (
    ORDERED,
    Permutation,
    permutation,
    places_of,
    seen_at,
)
from weft.objectives.targets.words import word_numbers


@OBJECTIVES.register("mpnet")
@dataclass(frozen=True, kw_only=True)
class MPNet:
    """Cross-entropy of the last tokens of a random order; its score is the accuracy on them."""

    share: float = 0.15  # of the order, from its end, that is predicted
    masked: float = 0.8  # share of those that show the mask token
    random: float = 0.1  # share of those that show a random token; the rest stay as they are
    words: str = "tokens"  # what is ordered whole: words of "bytes", "given", of a tokenizer's file
    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"
    takes_marks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise WeftError(f"share is a part of the order in (0, 1]; got share={self.share}")
        check_shares(self.masked, self.random)

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """A language model on an encoder, with a row for the mask token."""
        return with_mask_row(self.name, trunk, self.tied, head)

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the predicted tokens, of both documents where rows are pairs."""
        losses = []
        for ids, valid, _ in unmarked(batch, self.name, ORDERED).documents():
            numbers = word_numbers(batch, ids, valid, self.words)
            order = permutation(all_real(ids, valid), self.share, generator, numbers)
            shown = disguised(ids, hiding(model), self.masked, self.random, generator)
            scores = mpnet_scores(model, ids, shown, valid, order)  # (b, p, vocab)
            losses.append(token_loss(scores, ids.gather(1, order.tail), order.real))
        return summed(losses)


def mpnet_seen(order: Permutation, real: Tensor) -> Tensor:
    """Who reads whom among tokens (n), masks (p) and queries (p): (b, n + 2p, n + 2p)."""
    given = order.known[:, None] - 1  # (b, 1): the level of what knows the given tokens alone
    hidden = order.tail_rank.masked_fill(~order.real, -1)  # (b, p)
    level = torch.cat(
        (order.rank.maximum(given), given.expand_as(hidden), order.tail_rank - 1), dim=1
    )  # (b, n + 2p)
    return seen_at(level, order.rank.masked_fill(~real, -1), hidden, hidden.shape[1])


def mpnet_scores(
    model: LanguageModelModule, ids: Tensor, shown: Tensor, valid: Tensor | None, order: Permutation
) -> Tensor:
    """Scores of the tail's tokens (b, p, vocab); masks show the tokens of `shown` (b, n)."""
    trunk, real = model.trunk, all_real(ids, valid)
    masks = take(trunk.embedding(shown, valid=valid), order.tail)  # (b, p, c)
    content = trunk.embedding(ids, valid=valid)  # (b, n, c)
    at = places_of(real).gather(1, order.tail)  # (b, p)
    hidden = read_streams(
        trunk,
        torch.cat((content, masks, masks), dim=1),
        seen=mpnet_seen(order, real),
        places=torch.cat((places_of(real), at, at), dim=1),
        valid=torch.cat((real, order.real, order.real), dim=1),
    )  # (b, n + 2p, c)
    return model.scores(hidden[:, -order.tail.shape[1] :])

"""Masked language modelling: some tokens from all the others.

    a share `rate` of the real tokens is chosen; of these 80 % become the mask token, 10 % a random
    token, 10 % stay; loss = −Σ log p(x_i | corrupted x) over the chosen i

With `words` whole words are chosen, each with probability `rate`, and all of their tokens are
predicted (`targets/words.py`). The mask token is one more id, `vocab`, which the task's tokens
never use: the model is built with a table of vocab + 1 rows. A model that was read from a
checkpoint keeps its own mask token, `model.mask`.

Paper: Devlin et al. 2018, section 3.1, https://arxiv.org/abs/1810.04805. As a first phase on a
task's own inputs this is masked self-pretraining (Amos et al. 2023,
https://arxiv.org/abs/2310.02980).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.models import Encoder, LanguageModel, PerceiverIO
from weft.models.heads.language_model import LanguageModelModule
from weft.models.registry import TrunkModel
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, output_of, plain_trunk
from weft.objectives.batch import Batch
from weft.objectives.causal_lm import fused_loss, summed, token_loss
from weft.objectives.targets.words import word_numbers


@OBJECTIVES.register("masked_lm")
@dataclass(frozen=True, kw_only=True)
class MaskedLM:
    """Cross-entropy of hidden tokens; its score is the accuracy on them."""

    rate: float = 0.15  # share of tokens that are to be predicted
    masked: float = 0.8  # share of those that show the mask token
    random: float = 0.1  # share of those that show a random token; the rest stay as they are
    words: str = "tokens"  # what is chosen whole: words of "bytes", "given", of a tokenizer's file
    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise WeftError(f"rate is a share in (0, 1]; got rate={self.rate}")
        check_shares(self.masked, self.random)

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """A language model on an encoder with the trunk's stack, and a row for the mask token."""
        return with_mask_row(self.name, trunk, self.tied, head, any_encoder=True)

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the chosen tokens, of both documents where rows are pairs."""
        losses = []
        for document in batch.documents():
            ids, valid, _ = document
            numbers = word_numbers(batch, ids, valid, self.words)
            shown, chosen = self.corrupt(ids, valid, hiding(model), generator, numbers)
            if getattr(model, "fused", False):
                losses.append(fused_loss(model, document._replace(ids=shown), ids, chosen))
            else:
                losses.append(token_loss(model(shown, **document.given), ids, chosen))
        return summed(losses)

    def corrupt(
        self,
        ids: Tensor,
        valid: Tensor | None,
        hidden: Hidden,
        generator: torch.Generator,
        numbers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What the model is shown, and which tokens it has to predict: both (b, n).

        Tokens with the same of the `numbers` (b, n) are chosen together.
        """
        chosen = torch.rand(ids.shape, generator=generator, device=ids.device) < self.rate
        if numbers is not None:
            chosen = chosen.gather(1, numbers)
        changed = disguised(ids, hidden, self.masked, self.random, generator)
        if valid is not None:
            chosen = chosen & valid
        return torch.where(chosen, changed, ids), chosen


class Hidden(NamedTuple):
    """The id that hides a token, and how many ids there are with it."""

    mask: int
    vocab: int


def hiding(model: TrunkModel) -> Hidden:
    """How tokens are hidden from this model."""
    return Hidden(model.mask, model.last_id + 1)


def disguised(
    ids: Tensor, hidden: Hidden, masked: float, random: float, generator: torch.Generator
) -> Tensor:
    """The input in place of each token if it is to be predicted: (b, n)."""
    fate = torch.rand(ids.shape, generator=generator, device=ids.device)
    other = torch.randint(hidden.vocab - 1, ids.shape, generator=generator, device=ids.device)
    other = other + (other >= hidden.mask)  # any id but the mask token's
    shown = torch.where(fate < masked, hidden.mask, ids)
    return torch.where((fate >= masked) & (fate < masked + random), other, shown)


def with_mask_row(
    name: str, trunk: Any, tied: bool, head: Head | None = None, *, any_encoder: bool = False
) -> LanguageModel:
    """A language model on an encoder whose table has one row more than the task has tokens.

    `any_encoder`: also a funnel or a perceiver.
    """
    vocab = trunk.embedding.vocab
    if vocab is None:
        raise WeftError(
            f"{name} reads tokens, so the trunk's embedding has a vocab; "
            f"got channels={trunk.embedding.channels}"
        )
    embedding = dataclasses.replace(trunk.embedding, vocab=vocab + 1)
    if any_encoder and isinstance(trunk, Encoder | PerceiverIO):
        encoder: Any = dataclasses.replace(trunk, embedding=embedding)
    else:
        encoder = Encoder(embedding=embedding, stack=plain_trunk(trunk, name).stack)
    return LanguageModel(trunk=encoder, **output_of(head, tied))


def check_shares(masked: float, random: float) -> None:
    """Refuse shares that are negative or more than all."""
    if min(masked, random) < 0 or masked + random > 1:
        raise WeftError(
            "masked and random are shares of the chosen tokens, at most 1 in sum; "
            f"got masked={masked}, random={random}"
        )


def all_real(ids: Tensor, valid: Tensor | None) -> Tensor:
    """The mask of a batch without padding is all True: (b, n)."""
    return torch.ones_like(ids, dtype=torch.bool) if valid is None else valid

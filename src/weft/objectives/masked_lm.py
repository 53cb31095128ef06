"""Masked language modelling: some tokens from all the others.

    a share `rate` of the real tokens is chosen; of these 80 % become the mask token, 10 % a random
    token, 10 % stay; loss = −Σ log p(x_i | corrupted x) over the chosen i

The mask token is one more id, `vocab`, which the task's tokens never use: the model is built with a
table of vocab + 1 rows. Paper: Devlin et al. 2018, section 3.1, https://arxiv.org/abs/1810.04805.
As a first phase on a task's own inputs this is masked self-pretraining (Amos et al. 2023,
https://arxiv.org/abs/2310.02980).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.models import Encoder, LanguageModel
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric
from weft.objectives.batch import Batch
from weft.objectives.causal_lm import documents, summed, token_loss


@OBJECTIVES.register("masked_lm")
@dataclass(frozen=True, kw_only=True)
class MaskedLM:
    """Cross-entropy of hidden tokens; its score is the accuracy on them."""

    rate: float = 0.15  # share of tokens that are to be predicted
    masked: float = 0.8  # share of those that show the mask token
    random: float = 0.1  # share of those that show a random token; the rest stay as they are
    tied: bool = True  # scores use the table of the embedding

    metric: ClassVar[Metric] = "accuracy"

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise WeftError(f"rate is a share in (0, 1]; got rate={self.rate}")
        if min(self.masked, self.random) < 0 or self.masked + self.random > 1:
            raise WeftError(
                "masked and random are shares of the chosen tokens, at most 1 together; "
                f"got masked={self.masked}, random={self.random}"
            )

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """A language model on an encoder with the trunk's stack, and a row for the mask token."""
        vocab = trunk.embedding.vocab
        if vocab is None:
            raise WeftError(
                "masked_lm hides tokens, so the trunk's embedding has a vocab; "
                f"got channels={trunk.embedding.channels}"
            )
        embedding = dataclasses.replace(trunk.embedding, vocab=vocab + 1)
        return LanguageModel(trunk=Encoder(embedding=embedding, stack=trunk.stack), tied=self.tied)

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the chosen tokens, of both documents where rows are pairs."""
        mask = model.config.trunk.embedding.vocab - 1
        losses = []
        for ids, valid in documents(batch):
            shown, chosen = self.corrupt(ids, valid, mask, generator)
            losses.append(token_loss(model(shown, valid=valid), ids, chosen))
        return summed(losses)

    def corrupt(
        self, ids: Tensor, valid: Tensor | None, mask: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """What the model is shown, and which tokens it has to predict: both (b, n)."""
        device = ids.device
        chosen = torch.rand(ids.shape, generator=generator, device=device) < self.rate
        fate = torch.rand(ids.shape, generator=generator, device=device)
        other = torch.randint(mask, ids.shape, generator=generator, device=device)
        if valid is not None:
            chosen = chosen & valid
        shown = torch.where(chosen & (fate < self.masked), mask, ids)
        replaced = chosen & (fate >= self.masked) & (fate < self.masked + self.random)
        return torch.where(replaced, other, shown), chosen

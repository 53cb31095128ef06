"""ELECTRA: tell tokens that a small generator wrote from the true ones.

    a share `rate` of the tokens is masked; the generator is trained to fill them, and a token drawn
    from its distribution takes the place of each;
    loss = Σ_masked −log p_G(x_i | masked x) / rate + weight · Σ_i BCE(D_i, replaced_i)

A drawn token that is the true one counts as original. No gradient passes through the drawing.
The loss is spread over all real tokens, of which rate · tokens are masked on average.

Paper: Clark et al. 2020, section 3.1, https://arxiv.org/abs/2003.10555
Differs from it: the generator's loss is divided by the expected number of masked tokens instead of
the actual one, so that rows weigh alike however they are put into batches.
Mixers: any that reads both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.models import Encoder
from weft.models.heads.electra import Electra, ElectraModule
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, wide
from weft.objectives.batch import Batch, ModelInputs
from weft.objectives.causal_lm import summed, token_loss
from weft.objectives.masked_lm import all_real, with_mask_row


@OBJECTIVES.register("electra")
@dataclass(frozen=True, kw_only=True)
class ElectraObjective:
    """Two losses at once; the score is the discriminator's accuracy over all tokens."""

    rate: float = 0.15  # share of tokens that the generator fills
    weight: float = 50.0  # of the discriminator's loss
    share: float = 0.25  # of the heads, and so of the width, that the generator has

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0 or self.weight < 0.0:
            raise WeftError(
                "rate is a share in (0, 1] and weight is 0 or more; "
                f"got rate={self.rate}, weight={self.weight}"
            )

    def build(self, trunk: Any, head: Head | None = None) -> Electra:
        """Generator and discriminator around the trunk, and a row for the mask token."""
        made = with_mask_row(self.name, trunk, tied=True, head=head)
        assert isinstance(made.trunk, Encoder)
        return Electra(trunk=made.trunk, share=self.share, output=made.output)

    def loss(self, model: ElectraModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over all real tokens, of both documents where rows are pairs."""
        return summed([self._loss(model, each, generator) for each in batch.documents()])

    def _loss(
        self, model: ElectraModule, document: ModelInputs, generator: torch.Generator
    ) -> Loss:
        ids, given = document.ids, document.given
        real = all_real(ids, document.valid)
        chosen = torch.rand(ids.shape, generator=generator, device=ids.device) < self.rate
        chosen = chosen & real
        scores = model.fill(torch.where(chosen, model.mask, ids), **given)  # (b, n, vocab)
        filled = token_loss(scores, ids, chosen)
        shown = torch.where(chosen, drawn(scores, generator), ids)
        replaced = shown != ids  # (b, n)
        verdict = wide(model(shown, **given))  # (b, n)
        judged = F.binary_cross_entropy_with_logits(
            verdict, replaced.to(verdict.dtype), reduction="none"
        ).masked_fill(~real, 0.0)
        right = ((verdict.detach() > 0) == replaced) & real
        total = filled.total / self.rate + self.weight * judged.sum()
        return Loss(total, real.sum(), right.sum())


@torch.no_grad()
def drawn(scores: Tensor, generator: torch.Generator) -> Tensor:
    """A token from softmax(scores) (b, n, vocab), never the last, which is the mask: (b, n)."""
    weights = wide(scores[..., :-1]).softmax(-1).cumsum(-1)  # (b, n, vocab − 1)
    chance = torch.rand(scores.shape[:-1], generator=generator, device=scores.device)
    target = chance.to(weights.dtype)[..., None] * weights[..., -1:]  # (b, n, 1)
    return (
        torch.searchsorted(weights, target, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)
    )

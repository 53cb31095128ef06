"""Causal language modelling: every token from those before it.

    loss = −Σ_t log p(x_{t+1} | x_≤t), over neighbours that are both real

The first token of a row has nothing before it and is not predicted. As a first phase on a task's
own inputs this is causal self-pretraining (Amos et al. 2023, https://arxiv.org/abs/2310.02980).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.models import Decoder, LanguageModel
from weft.models.heads.language_model import LanguageModelModule
from weft.objectives.base import (
    OBJECTIVES,
    Head,
    Loss,
    Metric,
    counted,
    output_of,
    plain_trunk,
    wide,
)
from weft.objectives.batch import Batch, ModelInputs


@OBJECTIVES.register("causal_lm")
@dataclass(frozen=True, kw_only=True)
class CausalLM:
    """Cross-entropy of the next token; its score is in bits, which for byte tokens is per byte."""

    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]
    metric: ClassVar[Metric] = "bits per byte"

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """A language model on a decoder with the trunk's embedding and stack."""
        trunk = plain_trunk(trunk, self.name)
        decoder = Decoder(embedding=trunk.embedding, stack=trunk.stack)
        return LanguageModel(trunk=decoder, **output_of(head, self.tied))

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over predicted tokens, of both documents where rows are pairs."""
        return summed([next_token_loss(model, document) for document in batch.documents()])


def next_token_loss(model: LanguageModelModule, document: ModelInputs) -> Loss:
    """The loss of one document per row."""
    ids, valid, _ = document
    if getattr(model, "fused", False):
        return fused_loss(model, document, *shifted(ids, valid))
    scores = model(ids, **document.given)[:, :-1]  # (b, n − 1, vocab)
    known = None if valid is None else valid[:, 1:] & valid[:, :-1]  # (b, n − 1)
    return token_loss(scores, ids[:, 1:], known)


def token_loss(scores: Tensor, targets: Tensor, chosen: Tensor | None) -> Loss:
    """Cross-entropy of scores (b, n, vocab) against targets (b, n), where chosen (b, n)."""
    right = scores.detach().argmax(-1) == targets  # (b, n)
    if chosen is None:
        count = counted(targets.numel(), targets)
    else:
        count, right = chosen.sum(), right & chosen
        targets = targets.masked_fill(~chosen, -100)
    flat = wide(scores).flatten(0, 1)  # (b · n, vocab)
    total = F.cross_entropy(flat, targets.flatten(), ignore_index=-100, reduction="sum")
    return Loss(total, count, right.sum())


def shifted(ids: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """What follows each token, and where something real does: (b, n) -> (b, n), (b, n)."""
    following = F.pad(ids[:, 1:], (0, 1))  # (b, n)
    real = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
    return following, real & F.pad(real[:, 1:], (0, 1))


def fused_loss(
    model: LanguageModelModule, document: ModelInputs, targets: Tensor, chosen: Tensor
) -> Loss:
    """The loss of the chosen targets, all (b, n), from an output that never holds all scores."""
    loss, best = model(document.ids, **document.given, targets=targets, chosen=chosen)
    return Loss(loss.sum(), chosen.sum(), ((best == targets) & chosen).sum())


def summed(losses: list[Loss]) -> Loss:
    """One loss over the items of several."""
    total, count, right = losses[0][:3]
    for each in losses[1:]:
        total, count, right = total + each.total, count + each.count, right + each.right
    return Loss(total, count, right)

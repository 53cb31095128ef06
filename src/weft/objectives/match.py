"""Matching: one class for each pair of documents, both read by the same trunk.

    loss = −log softmax(model(x, second))_y, summed over pairs

The dual encoder of Long Range Arena's retrieval task, Tay et al. 2020,
https://arxiv.org/abs/2011.04006
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from weft.errors import WeftError
from weft.models import Matcher
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric
from weft.objectives.batch import Batch
from weft.objectives.classify import class_loss


@OBJECTIVES.register("match")
@dataclass(frozen=True, kw_only=True)
class Match:
    """Cross-entropy of one class per pair."""

    metric: ClassVar[Metric] = "accuracy"

    def build(self, trunk: Any, head: Head) -> Matcher:
        """A matcher around the trunk."""
        return Matcher(trunk=trunk, **head.of_documents())

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over pairs."""
        if batch.second is None:
            raise WeftError("match reads two documents per row; this batch has one: use classify")
        given = {
            f"{side}_{name}": value
            for side, document in zip(("first", "second"), batch.documents(), strict=True)
            for name, value in document.given.items()
        }
        scores = model(batch.x, batch.second, **given)  # (b, classes)
        return class_loss(scores, batch)

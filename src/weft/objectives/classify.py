"""Classification: one class for each document.

loss = −log softmax(model(x))_y, summed over documents
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.models import Classifier
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, counted, wide
from weft.objectives.batch import Batch


@OBJECTIVES.register("classify")
@dataclass(frozen=True, kw_only=True)
class Classify:
    """Cross-entropy of one class per document."""

    metric: ClassVar[Metric] = "accuracy"

    def build(self, trunk: Any, head: Head) -> Classifier:
        """A classifier around the trunk."""
        return Classifier(trunk=trunk, **head.of_documents())

    def loss(self, model: Callable[..., Tensor], batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over documents."""
        return class_loss(model(batch.x, **batch.given), batch)


def class_loss(scores: Tensor, batch: Batch) -> Loss:
    """Cross-entropy of scores (b, classes) against the batch's classes."""
    if batch.y is None:
        raise WeftError(
            "this batch has no classes; to learn from inputs alone take causal_lm or masked_lm"
        )
    total = F.cross_entropy(wide(scores), batch.y, reduction="sum")
    hits = scores.detach().argmax(-1) == batch.y  # (b,)
    return Loss(total, counted(len(batch), total), hits.sum(), hits, scores.detach())

"""Regression: one number for each document.

    loss = Σ (model(x) − y)², summed over documents

Where a task has classes, their numbers are what is learned: stars of a review, say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.models import Classifier
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, counted, wide
from weft.objectives.batch import Batch


@OBJECTIVES.register("regress")
@dataclass(frozen=True, kw_only=True)
class Regress:
    """Squared error of one number per document."""

    metric: ClassVar[Metric] = "mean squared error"

    def build(self, trunk: Any, head: Head) -> Classifier:
        """A head with one output around the trunk."""
        return Classifier(trunk=trunk, **{**head.of_documents(), "classes": 1})

    def loss(self, model: Callable[..., Tensor], batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over documents; no answer is simply right, so none is counted as such."""
        if batch.y is None:
            raise WeftError("regress learns one number per row; this batch has none: give Batch.y")
        guess = wide(model(batch.x, **batch.given)).squeeze(-1)  # (b,)
        total = (guess - batch.y.to(guess.dtype)).square().sum()
        shown = guess.detach()[:, None]
        return Loss(total, counted(len(batch), total), counted(0, total), scores=shown)

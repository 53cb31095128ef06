"""Classification: one class for each document.

loss = −log softmax(model(x))_y, summed over documents
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.models import Classifier
from weft.objectives.base import OBJECTIVES, Head, Loss, counted, wide
from weft.objectives.batch import Batch


@OBJECTIVES.register("classify")
@dataclass(frozen=True, kw_only=True)
class Classify:
    """Cross-entropy of one class per document."""

    metric: Literal["accuracy", "gini"] = "accuracy"  # gini: how well two classes are ranked
    roll: float = 0.0  # share of documents that are moved cyclically in training

    def __post_init__(self) -> None:
        if not 0.0 <= self.roll <= 1.0:
            raise WeftError(f"roll is a share of the documents, 0 to 1; got roll={self.roll}")

    def build(self, trunk: Any, head: Head) -> Classifier:
        """A classifier around the trunk."""
        return Classifier(trunk=trunk, **head.of_documents())

    def loss(self, model: Callable[..., Tensor], batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over documents."""
        if self.roll and getattr(model, "training", False):
            batch = rolled(batch, self.roll, generator)
        return class_loss(model(batch.x, **batch.given), batch)


def rolled(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    """The batch with this share of its rows moved cyclically within their real tokens."""
    b, n = batch.x.shape[:2]
    draws = torch.rand(2, b, generator=generator, device=batch.x.device)
    sizes = torch.full((b,), n, device=batch.x.device)
    if batch.valid is not None:
        sizes = batch.valid.sum(1)
    return turned(batch, (draws[0] * sizes).long() * (draws[1] < share))


def turned(batch: Batch, moves: Tensor) -> Batch:
    """Each row turned by moves (b,) places to the front, within its real tokens, which come first.

    Padding stays behind them.
    """
    b, n = batch.x.shape[:2]
    at = torch.arange(n, device=batch.x.device).expand(b, n)
    real = at < n if batch.valid is None else batch.valid  # (b, n)
    sizes = real.sum(1, keepdim=True).clamp(min=1)  # (b, 1)
    place = torch.where(real, (at + moves[:, None]) % sizes, at)  # (b, n)
    tensors = batch.tensors()
    for name, tensor in tensors.items():
        if name in ("x", "words") or name.startswith("marks."):
            index = place.reshape(b, n, *[1] * (tensor.dim() - 2)).expand_as(tensor)
            tensors[name] = tensor.gather(1, index)
    return batch.with_tensors(tensors)


def class_loss(scores: Tensor, batch: Batch) -> Loss:
    """Cross-entropy of scores (b, classes) against the batch's classes."""
    if batch.y is None:
        raise WeftError(
            "this batch has no classes; to learn from inputs alone take causal_lm or masked_lm"
        )
    total = F.cross_entropy(wide(scores), batch.y, reduction="sum")
    hits = scores.detach().argmax(-1) == batch.y  # (b,)
    return Loss(total, counted(len(batch), total), hits.sum(), hits, scores.detach())

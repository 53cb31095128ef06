"""What accuracy does not say of a classifier: each class by itself, confusions, calibration.

    macro F1             mean over classes of 2 · precision · recall / (precision + recall)
    calibration error    Σ over bins of confidence: share of rows · |accuracy − mean confidence|

Guo et al. 2017, https://arxiv.org/abs/1706.04599, for the latter (15 bins of equal width).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 15
MOST_CLASSES = 1000  # a table of confusions of more is too large


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows of about the same confidence: calibrated where accuracy equals it."""

    confidence: float
    accuracy: float
    count: int


@dataclass(frozen=True)
class ClassScores:
    """Of all rows of a split."""

    confusion: tuple[tuple[int, ...], ...]  # rows by true class, columns by predicted class
    calibration_error: float
    reliability: tuple[ReliabilityBin, ...] = ()

    @property
    def f1(self) -> list[float | None]:
        """Of each class; None for one that neither occurs nor is predicted."""
        return [_f1(self.confusion, k) for k in range(len(self.confusion))]

    @property
    def macro_f1(self) -> float:
        """The mean over classes."""
        found = [value for value in self.f1 if value is not None]
        return sum(found) / len(found)

    def row(self, labels: Sequence[Any] = ()) -> dict[str, Any]:
        """As plain values; `labels` name the classes."""
        names = [str(label) for label in labels or range(len(self.confusion))]
        classes = []
        for k, (own, f1) in enumerate(zip(self.confusion, self.f1, strict=True)):
            if f1 is None:
                continue
            predicted = sum(row[k] for row in self.confusion)
            classes.append(
                {
                    "label": names[k],
                    "count": sum(own),
                    "precision": own[k] / predicted if predicted else 0.0,
                    "recall": own[k] / sum(own) if sum(own) else 0.0,
                    "f1": f1,
                    "predicted as": {names[j]: n for j, n in enumerate(own) if n},
                }
            )
        return {
            "macro F1": self.macro_f1,
            "calibration error": self.calibration_error,
            "classes": classes,
            "reliability": [dataclasses.asdict(own) for own in self.reliability],
        }


class ClassTally:
    """Counts on the device, read once at the end."""

    def __init__(self, scores: Tensor) -> None:
        self.classes = scores.shape[-1]
        wide = torch.float32 if scores.device.type == "mps" else torch.float64
        count = self.classes**2
        self.confusion = torch.zeros(count, dtype=torch.int64, device=scores.device)
        self.bins = torch.zeros(3, BINS, dtype=wide, device=scores.device)  # rows, right, sure

    def add(self, scores: Tensor, y: Tensor) -> None:
        """Scores (b, classes) against classes (b,)."""
        sure, best = scores.float().softmax(-1).max(-1)  # (b,)
        self.confusion.index_add_(0, y * self.classes + best, torch.ones_like(best))
        at = (sure * BINS).long().clamp(0, BINS - 1)  # a score that is not finite: bin 0
        values = torch.stack([torch.ones_like(sure), (best == y).to(sure.dtype), sure])
        self.bins.index_add_(1, at, values.to(self.bins.dtype))

    def join(self, other: ClassTally) -> None:
        """Add the counts of other rows."""
        self.confusion += other.confusion.to(self.confusion.device)
        self.bins += other.bins.to(self.bins.device)

    def scores(self) -> ClassScores:
        """What the counts say."""
        confusion = self.confusion.view(self.classes, self.classes).tolist()
        rows, right, sure = self.bins.cpu()
        error = float((right - sure).abs().sum() / rows.sum().clamp(min=1))
        found = zip(rows.tolist(), right.tolist(), sure.tolist(), strict=True)
        curve = tuple(ReliabilityBin(s / n, r / n, int(n)) for n, r, s in found if n)
        return ClassScores(tuple(map(tuple, confusion)), error, curve)


def _f1(confusion: Sequence[Sequence[int]], k: int) -> float | None:
    true, predicted = sum(confusion[k]), sum(row[k] for row in confusion)
    return 2 * confusion[k][k] / (true + predicted) if true + predicted else None

"""How well scores rank two classes: area under the ROC curve, Gini, and their standard errors.

    AUC = P(score of a positive > score of a negative) + P(equal) / 2,    Gini = 2 AUC − 1

The standard error is that of Hanley and McNeil 1982 (https://doi.org/10.1148/radiology.143.1.7063747):

    SE² = [A (1 − A) + (m − 1)(A / (2 − A) − A²) + (k − 1)(2 A² / (1 + A) − A²)] / (m k)

for m positives and k negatives; `bootstrap` draws the rows again instead, which assumes nothing of
how scores are distributed. SE(Gini) = 2 SE(AUC).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.metrics import auc_error


@dataclass(frozen=True)
class RankScores:
    """Of all rows of a split with two classes; None where one of them is missing."""

    gini: float | None
    error: float | None  # standard error of gini, by Hanley and McNeil
    margins: np.ndarray | None = None  # (rows,) what they were ranked by,
    labels: np.ndarray | None = None  # and the classes

    def row(self) -> dict[str, Any]:
        """As plain values, with the error of rows drawn again beside Hanley and McNeil's."""
        area = None if self.gini is None else (self.gini + 1) / 2
        found = {"gini": self.gini, "gini error": self.error, "AUC": area}
        if self.gini is None or self.margins is None or self.labels is None:
            return found
        return {**found, "gini bootstrap error": bootstrap(self.margins, self.labels)}


class RankTally:
    """Scores of all rows: ranks need them together."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def add(self, scores: Tensor, y: Tensor) -> None:
        """Scores (b, 2) against classes (b,)."""
        margin = scores[:, 1].double() - scores[:, 0].double()
        self.seen.append(torch.stack((margin, y.double())))

    def scores(self) -> RankScores:
        """What the ranks say."""
        margins, labels = torch.cat(self.seen, dim=1).cpu().numpy()
        area, positives = auc(margins, labels), int(labels.sum())
        if math.isnan(area):
            return RankScores(None, None)
        error = 2 * auc_error(area, positives, len(labels) - positives)
        return RankScores(2 * area - 1, error, margins, labels)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the curve of scores (n,) for labels (n,) that are 0 or 1; NaN with one class."""
    positive = labels == 1
    m, k = int(positive.sum()), int((~positive).sum())
    if not m or not k:
        return math.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1; ties share their mean
    return float((ranks[positive].sum() - m * (m + 1) / 2) / (m * k))


def gini(scores: np.ndarray, labels: np.ndarray) -> float:
    """2 AUC − 1."""
    return 2 * auc(scores, labels) - 1


def bootstrap(scores: np.ndarray, labels: np.ndarray, draws: int = 200, seed: int = 0) -> float:
    """The standard error of Gini, from rows drawn again with replacement.

    Rows are sorted once; a draw is a number of copies of each.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    _, place = np.unique(scores, return_inverse=True)  # rows of one score share a place
    found = []
    for _ in range(draws):
        copies = np.bincount(rng.integers(len(scores), size=len(scores)), minlength=len(scores))
        positive = np.bincount(place, weights=copies * (labels == 1))
        negative = np.bincount(place, weights=copies * (labels != 1))
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative / 2  # ties count half
        found.append(2 * (positive @ below) / pairs - 1 if pairs else np.nan)
    return float(np.nanstd(found))

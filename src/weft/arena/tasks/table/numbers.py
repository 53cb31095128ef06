"""Labels that are numbers to predict: scaled to mean 0 and variance 1 over the training rows.

So a learning rate fits prices and percentages alike, and a mean squared error of 1 is what the mean
of the labels reaches. Predictions are scaled back (`offset + scale · output`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.arena.tasks.table.splits import TRAIN
from weft.errors import WeftError

TENTHS = 10


class Numbers(NamedTuple):
    """Scaled labels, and how to scale back."""

    values: np.ndarray  # (rows,) float32
    offset: float
    scale: float


def standard(labels: np.ndarray, splits: np.ndarray) -> Numbers:
    """Labels (rows,) less their mean in train, in units of their standard deviation there."""
    train = labels[splits == TRAIN]
    offset, scale = float(train.mean()), float(train.std())
    if scale == 0.0:
        raise WeftError(f"there is nothing to learn: every label of train is {offset:g}")
    return Numbers(((labels - offset) / scale).astype(np.float32), offset, scale)


def tenths(labels: list[str]) -> np.ndarray:
    """(rows,) the tenth of the numbers that each is in: splits take their share of each."""
    numbers = np.array(labels, dtype=np.float64)
    edges = np.quantile(numbers, np.linspace(0, 1, TENTHS + 1)[1:-1])
    return np.searchsorted(edges, numbers, side="right").astype(np.int64)

"""What a mean squared error does not say of a regression, in the unit of its labels.

mean absolute error   Σ |ŷ − y| / n
R²                    1 − Σ (ŷ − y)² / Σ (y − ȳ)²: 0 is what the mean of these labels reaches
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class NumberScores:
    """Of all rows of a split, in the unit in which they were learned."""

    absolute: float
    squared: float
    r2: float | None  # None where all labels are alike

    def row(self, scale: float = 1.0) -> dict[str, Any]:
        """As plain values; `scale` is the labels' unit."""
        return {
            "mean absolute error": self.absolute * scale,
            "root mean squared error": math.sqrt(self.squared) * scale,
            "R²": self.r2,
        }


class NumberTally:
    """Sums on the device, read once at the end."""

    def __init__(self, guess: Tensor) -> None:
        wide = torch.float32 if guess.device.type == "mps" else torch.float64
        self.sums = torch.zeros(5, dtype=wide, device=guess.device)

    def add(self, guess: Tensor, y: Tensor) -> None:
        """Predictions (b, 1) and labels (b,)."""
        y = y.to(self.sums.dtype)
        error = guess[:, 0].to(self.sums.dtype) - y
        parts = (torch.ones_like(y), y, y.square(), error.abs(), error.square())
        self.sums += torch.stack(parts).sum(1)

    def join(self, other: NumberTally) -> None:
        """Add the sums of other rows."""
        self.sums += other.sums.to(self.sums.device)

    def scores(self) -> NumberScores:
        """What the sums say."""
        count, total, squares, absolute, squared = self.sums.tolist()
        spread = squares - total**2 / count
        known = spread > 1e-12 * max(squares, 1.0)
        r2 = 1 - squared / spread if known else None
        return NumberScores(absolute / count, squared / count, r2)

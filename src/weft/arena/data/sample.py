"""Some rows of a split, the same ones every time: what is scored where all take too long."""

from __future__ import annotations

from typing import Any

import numpy as np


def sample(rows: Any, count: int | None) -> Any:
    """`count` rows drawn without replacement; None, or as many as there are: the rows themselves.

    A larger sample holds every smaller one.
    """
    if count is None or count >= len(rows):
        return rows
    return SampledRows(rows, np.sort(np.random.default_rng(0).permutation(len(rows))[:count]))


class SampledRows:
    """Chosen rows of a split, as a split."""

    def __init__(self, rows: Any, index: np.ndarray) -> None:
        self.rows, self.index = rows, index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def lengths(self) -> np.ndarray | None:
        """Of the chosen rows, where they are known."""
        found = getattr(self.rows, "lengths", None)
        return None if found is None else found[self.index]

    @property
    def group_names(self) -> tuple[str, ...]:
        """What the rows' groups are called, where they have names."""
        return getattr(self.rows, "group_names", ())

    def batch(self, index: np.ndarray) -> Any:
        """The rows of these numbers."""
        return self.rows.batch(self.index[index])

"""Rows of several modalities as batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch

from weft.objectives.batch import Batch


@dataclass(frozen=True, eq=False)
class MultimodalExamples:
    """Rows and their classes; NaN is what a row lacks."""

    values: np.ndarray  # (rows, total) float32
    labels: np.ndarray  # (rows,) int64
    fixed: bool = False  # all rows are equally long as it is
    groups: None = None
    group_names: tuple[str, ...] = ()
    second: None = None  # rows are no pairs

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def rows(self) -> MultimodalExamples:
        """The documents of each row."""
        return self

    @property
    def length(self) -> int:
        """Values of a row."""
        return self.values.shape[1]

    @property
    def classes(self) -> np.ndarray:
        """The labels."""
        return self.labels

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) values that are there."""
        return (~np.isnan(self.values)).sum(1)

    @property
    def padded_share(self) -> float:
        """Of rows that lack something."""
        return float(np.isnan(self.values).any(1).mean())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all values and classes."""
        found = blake2b(digest_size=8)
        for array in (self.values, self.labels):
            found.update(np.ascontiguousarray(array).view(np.uint8).data)
        return found.hexdigest()

    def __getitem__(self, row: int) -> np.ndarray:
        """(total, 1) of one row."""
        return self.values[row][:, None]

    def batch(self, index: np.ndarray) -> Batch:
        """The rows of these numbers, on the CPU: values (b, total, 1)."""
        x = torch.from_numpy(self.values[index])[..., None]
        valid = ~x[..., 0].isnan()  # (b, total)
        whole = bool(valid.all())
        y = torch.from_numpy(self.labels[index])
        return Batch(x=x.nan_to_num(0.0), valid=None if whole else valid, y=y)

"""A split of clients: their last events, as batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from weft.events.rows import padded
from weft.events.store import Store
from weft.objectives.batch import Batch


@dataclass(frozen=True, eq=False)
class EventExamples:
    """Clients and their classes; rows are the last `length` events."""

    store: Store
    clients: np.ndarray  # (rows,) places in the store
    length: int
    labels: np.ndarray  # (rows,) int64
    fixed: bool = False  # every batch is padded to `length`
    groups: None = None
    group_names: tuple[str, ...] = ()
    second: None = None  # rows are no pairs

    @property
    def rows(self) -> EventExamples:
        """The documents of each row: its events."""
        return self

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def classes(self) -> np.ndarray:
        """The labels (rows,)."""
        return self.labels

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) events that are read of each."""
        return np.minimum(self.store.lengths[self.clients], self.length)

    def __getitem__(self, row: int) -> np.ndarray:
        """(events, channels) of one client."""
        found = self.batch(np.array([row]))
        return found.x[0].numpy() if found.valid is None else found.x[found.valid].numpy()

    def batch(self, index: np.ndarray) -> Batch:
        """The rows of these numbers, on the CPU."""
        width = self.length if self.fixed else None
        x, valid = padded(self.store, self.clients[index], self.length, width)
        return Batch(x=x, valid=valid, y=torch.from_numpy(self.labels[index]))

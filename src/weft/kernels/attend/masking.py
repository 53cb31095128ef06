"""Padding and packed documents as one thing: a query reads the keys that carry its label.

Documents packed in a row are numbered; padding carries −1, which no query carries. The labels of
queries (b, n or 1) and of keys (b, m) travel with q and k through every reordering.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class KeyLabels(NamedTuple):
    """A query reads a key where `queries == keys`."""

    queries: Tensor  # (b, n or 1)
    keys: Tensor  # (b, m)

    def dense(self) -> Tensor:
        """All pairs: (b, n or 1, m) booleans."""
        return self.queries[:, :, None] == self.keys[:, None, :]

    def take(self, rows: Tensor | None, cols: Tensor | None) -> KeyLabels:
        """The labels of these queries and keys; None takes all."""
        queries = self.queries
        if rows is not None and queries.shape[1] > 1:
            queries = queries[:, rows]
        return KeyLabels(queries, self.keys if cols is None else self.keys[:, cols])

    def fold(self, s: int) -> KeyLabels:
        """Residue classes become rows of the batch: (b, m) -> (b·s, m / s), padded with −1."""
        every = self.queries.expand(-1, self.keys.shape[1])
        return KeyLabels(_fold(every, s), _fold(self.keys, s))


def make_labels(valid: Tensor | None, segments: Tensor | None, n: int) -> KeyLabels | None:
    """The labels for `valid` (b, m) and `segments` (b, m), of which queries are the last n."""
    if segments is not None:
        keys = segments if valid is None else segments.masked_fill(~valid, -1)
        return KeyLabels(segments[:, -n:], keys)
    if valid is not None:
        keys = valid.to(torch.int32) - 1
        return KeyLabels(keys.new_zeros(len(keys), 1), keys)
    return None


def _fold(labels: Tensor, s: int) -> Tensor:
    padded = F.pad(labels, (0, -labels.shape[1] % s), value=-1)
    return padded.unflatten(1, (-1, s)).transpose(1, 2).flatten(0, 1)

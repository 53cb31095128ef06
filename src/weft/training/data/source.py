"""Where batches come from: pure functions of the step, so that resuming needs no loader state.

    Shuffled   for training: the rows of a split in a fresh order each epoch, for ever
    Ordered    for validation and test: every row once, the last batch as small as it has to be;
               from long to short where lengths are known, so that little is padding

A source of a user's own (images generated on the fly, say) is anything with `batch(step)` that
gives the same batch for the same step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from weft.errors import WeftError
from weft.objectives.batch import Batch
from weft.training.data.seeds import derive


class SplitRows(Protocol):
    """A split in memory, e.g. weft.arena.data.examples.Examples."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray) -> Batch:
        """The rows of these numbers."""
        ...


class Source(Protocol):
    """Batches to train on."""

    def batch(self, step: int) -> Batch:
        """The batch of this step, from 0: always the same for the same step, on the CPU."""
        ...


@dataclass(frozen=True, eq=False)
class _Batched:
    """Rows in batches."""

    rows: SplitRows
    batch_size: int = 32

    def __post_init__(self) -> None:
        if len(self.rows) < 1:
            raise WeftError("a source needs at least one row; this split is empty")
        if self.batch_size < 1:
            raise WeftError(f"batch_size is at least 1; got batch_size={self.batch_size}")

    @property
    def fingerprint(self) -> str | None:
        """A hash of the rows, where they have one."""
        return getattr(self.rows, "fingerprint", None)


@dataclass(frozen=True, eq=False)
class Shuffled(_Batched):
    """Rows one epoch after another, each epoch in an order of its own.

    Step s takes rows s·b to (s + 1)·b − 1 of that endless list: every batch is full, every row
    comes once per epoch, and a batch may hold the end of one epoch and the start of the next.
    """

    seed: int = 0

    def __str__(self) -> str:
        size = len(self.rows)
        return f"{size} rows, shuffled by seed {self.seed}, in batches of {self.batch_size}"

    def batch(self, step: int) -> Batch:
        """The batch of this step, from 0."""
        return self.rows.batch(self.index(step))

    def index(self, step: int) -> np.ndarray:
        """The row numbers of this step: (b,)."""
        size, taken = len(self.rows), []
        place, left = step * self.batch_size, self.batch_size
        while left:
            epoch, start = divmod(place, size)
            part = permutation(size, self.seed, epoch)[start : start + left]
            taken.append(part)
            place, left = place + len(part), left - len(part)
        return np.concatenate(taken)


@dataclass(frozen=True, eq=False)
class Ordered(_Batched):
    """Every row once: in order, or from long to short if the rows say their `lengths`.

    Rows of like length share a batch, so that little of it is padding; the longest come first, so
    that a lack of memory shows at once.
    """

    def __str__(self) -> str:
        return f"{len(self.rows)} rows, each once, in batches of {self.batch_size}"

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        lengths = getattr(self.rows, "lengths", None)
        order = (
            np.arange(len(self.rows)) if lengths is None else np.argsort(-lengths, kind="stable")
        )
        for start in range(0, len(order), self.batch_size):
            yield self.rows.batch(order[start : start + self.batch_size])

    @property
    def group_names(self) -> tuple[str, ...]:
        """What the rows' groups are called, where they have names."""
        return getattr(self.rows, "group_names", ())


@lru_cache(maxsize=4)
def permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: (size,)."""
    order = np.random.Generator(np.random.PCG64(derive(seed, "epoch", epoch))).permutation(size)
    order.flags.writeable = False  # shared by all who ask
    return order

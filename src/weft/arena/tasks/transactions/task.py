"""Default from a year of made-up transactions, with a best possible score that is known.

Who defaults is said in `clients.py`; its best Gini is `best_gini()`, 0.75. The sizes are those of a
bank's study: a million clients to train, 250,000 to validate, 500,000 out of time, whose year is
later and a little riskier. A client is made whenever it is read, from (seed, number) alone.

The set-up follows the talk of the study's authors: 10 categories, 10 numbers, about 700
transactions each, Gini out of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.events.examples import EventExamples
from weft.arena.tasks.transactions.clients import (
    NAMES,
    NUMBERS,
    SIZES,
    VERSION,
    YEAR,
    Generator,
    MadeUpClients,
    labelled,
)
from weft.arena.tasks.transactions.scales import scaled
from weft.arena.tasks.transactions.stored import SPACING, made, stored
from weft.errors import WeftError
from weft.events.encoders import FIRST
from weft.events.rows import TIME_CHANNELS, time_features
from weft.objectives.batch import Batch
from weft.training.scores.ranking import gini


@TASKS.register("transactions")
@dataclass(frozen=True, kw_only=True)
class Transactions:
    """Will a client default? Read from up to 1,500 transactions."""

    length: int = 750  # transactions that are read, the last ones
    train: int = 1_000_000  # clients
    valid: int = 250_000
    test: int = 500_000  # out of time
    seed: int = 0
    stored: bool = False  # make clients once, into the cache: fast where each is read several times

    kind: ClassVar = "classify"
    metric: ClassVar = "gini"
    classes: ClassVar = 2
    vocab: ClassVar = 0
    labels: ClassVar = ("paid", "default")

    def __post_init__(self) -> None:
        for name in ("length", "train", "valid", "test"):
            if getattr(self, name) < 1:
                raise WeftError(f"{name} is at least 1; got {getattr(self, name)}")

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        return f"made-up bank clients, version {VERSION}, seed {self.seed}, test out of time"

    @property
    def inputs(self) -> dict[str, Any]:
        """The embedding's settings."""
        channels = len(NAMES) + len(NUMBERS) + TIME_CHANNELS
        return {"channels": channels, "categories": tuple(FIRST + size for size in SIZES)}

    def load(self, split: Split) -> MadeClients | EventExamples:
        """One split; nothing is made before it is read, unless clients are stored."""
        if self.stored:
            store, labels = stored(split, getattr(self, split), self.seed)
            return EventExamples(store, np.arange(len(labels)), self.length, labels)
        return MadeClients(self, split, getattr(self, split))

    def baselines(self) -> dict[str, float]:
        """What no model can beat, and no model at all; over the test split's first clients."""
        count = min(self.test, 20_000)
        first = SPLITS.index("test") * SPACING
        risk, labels = labelled(np.arange(count) + first, self.seed, late=True)
        return {"no model": 0.0, "the true probability": gini(risk, labels)}

    def show(self, row: np.ndarray) -> str:
        """Transactions, one on a line, by the names of their columns."""
        lines = []
        for event in row:
            codes, numbers = event[: len(NAMES)], event[len(NAMES) :]
            own = [f"{name} {int(code) - FIRST}" for name, code in zip(NAMES, codes, strict=True)]
            own += [f"{name} {x:.2f}" for name, x in zip(NUMBERS, numbers, strict=False)]
            lines.append(", ".join(own))
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class MadeClients:
    """MadeUpClients of a split, made as they are read; rows are their last transactions."""

    task: Transactions
    split: Split
    count: int
    fixed: bool = False  # every batch is padded to `length`
    groups: None = None
    group_names: tuple[str, ...] = ()
    second: None = None  # rows are no pairs

    def __len__(self) -> int:
        return self.count

    @property
    def rows(self) -> MadeClients:
        """The documents of each row."""
        return self

    @property
    def length(self) -> int:
        """The longest row."""
        return self.task.length

    @property
    def labels(self) -> np.ndarray:
        """(rows,) whether each client defaults: known without its transactions."""
        first = SPLITS.index(self.split) * SPACING
        index = np.arange(self.count) + first
        return labelled(index, self.task.seed, late=self.split == "test")[1]

    @property
    def padded_share(self) -> float:
        """Share of rows that are shorter than `length`, in a sample."""
        return float((self.made(np.arange(min(self.count, 64))).lengths < self.length).mean())

    def made(self, index: np.ndarray) -> MadeUpClients:
        """The clients of these rows."""
        return made(self.split, index, self.task.seed)

    def __getitem__(self, row: int) -> np.ndarray:
        """(events, channels) of one client."""
        found = self.batch(np.array([row]))
        return found.x[0].numpy() if found.valid is None else found.x[found.valid].numpy()

    def batch(self, index: np.ndarray) -> Batch:
        """The rows of these numbers, on the CPU."""
        found = self.made(np.asarray(index, dtype=np.int64))
        x, real = last_events(found, self.length, self.length if self.fixed else None)
        valid = None if real.all() else torch.from_numpy(real)
        return Batch(x=x, valid=valid, y=torch.from_numpy(found.labels))


def last_events(
    found: MadeUpClients, length: int, width: int | None
) -> tuple[torch.Tensor, np.ndarray]:
    """Values (b, n, channels) of the last events, and which are real (b, n)."""
    sizes = np.minimum(found.lengths, length)
    n = int(sizes.max()) if width is None else width
    real = np.arange(n) < sizes[:, None]  # (b, n)
    places = np.where(real, (found.lengths - sizes)[:, None] + np.arange(n), 0)
    rows = np.arange(len(sizes))[:, None]
    days = found.days[rows, places]
    before = np.where(places > 0, found.days[rows, np.maximum(places - 1, 0)], days)
    end = found.days[np.arange(len(sizes)), found.lengths - 1][:, None]
    scales = scaled()
    numbers = [scale.encode(found.numbers[rows, places, k]) for k, scale in enumerate(scales)]
    parts = (
        FIRST + found.codes[rows, places].astype(np.float32),
        np.stack(numbers, axis=-1),
        time_features(days, before, end),
    )
    x = np.concatenate(parts, axis=-1)
    x[~real] = 0.0
    return torch.from_numpy(x), real


def write_parquet(path: str, clients: int, seed: int = 0, first: int = 0) -> int:
    """Training clients as a Parquet file of one row for each event; gives the number of events."""
    import pyarrow
    from pyarrow import parquet

    events, writer = 0, None
    try:
        for start in range(first, first + clients, 500):
            index = np.arange(start, min(start + 500, first + clients))
            found = Generator(seed).clients(index, np.zeros(len(index)))
            real = np.arange(found.codes.shape[1]) < found.lengths[:, None]
            day = found.days / found.days.max(1, keepdims=True).clip(1) * YEAR
            moment = (day[real] * 86_400).astype("datetime64[s]")
            columns: dict[str, Any] = {"client": np.repeat(index, found.lengths), "time": moment}
            columns |= {name: found.codes[..., k][real] for k, name in enumerate(NAMES)}
            columns |= {name: found.numbers[..., k][real] for k, name in enumerate(NUMBERS)}
            columns["default"] = np.repeat(found.labels, found.lengths)
            table = pyarrow.table(columns)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            events += len(moment)
    finally:
        if writer is not None:
            writer.close()
    return events

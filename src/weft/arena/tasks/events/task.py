"""Your own events as a task: one row for each event of a client, one label for each client.

    events(data='transactions.parquet', id='client', time='when', label='default')

A model reads the last `length` events of a client, the most recent one last, and predicts the
label. Clients are split by a hash of their id; with `out_of_time`, those whose end (`until`, or
their last event) is on that date or later are the test split, which is what a bank asks of a model.
Encoders are fitted on what training may know: events of training clients before that date.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from weft.arena.data.cache import Arrays, cached
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.events.examples import EventExamples
from weft.errors import WeftError
from weft.events.columns import EventColumns
from weft.events.encoders import Encoders, Scale, encoders_of
from weft.events.pieces import SECONDS, event_files
from weft.events.rows import channels
from weft.events.store import Store, build_store
from weft.training.scores.ranking import gini

VERSION = 2  # of what the cache holds
TRAIN, VALID, TEST = range(3)


@TASKS.register("events")
@dataclass(frozen=True, kw_only=True)
class Events:
    """Predict a label of each client from its events."""

    data: str | tuple[str, ...] = ""  # files: Parquet or CSV; * and ? are understood
    id: str = "id"  # the column that says whose event it is
    time: str = "time"
    label: str = "label"
    until: str | None = None  # a column of dates from which on nothing may be read
    categories: tuple[str, ...] = ()  # left empty, as numbers: found by the values
    numbers: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    length: int = 750  # events that are read of each client, the last ones
    scale: Scale = "quantile"  # of numbers
    out_of_time: str = ""  # a date, e.g. 2024-07-01: clients that end there or later are the test
    valid_share: float = 0.1  # of the clients that are not out of time
    test_share: float = 0.1  # likewise, where there is no out_of_time
    seed: int = 0  # of the splits

    kind: ClassVar = "classify"
    vocab: ClassVar = 0

    def __post_init__(self) -> None:
        for name in ("valid_share", "test_share"):
            if not 0.0 < getattr(self, name) < 0.5:
                raise WeftError(f"{name} is above 0 and below 0.5; got {getattr(self, name)}")
        if self.length < 1:
            raise WeftError(
                f"length counts the events that are read, at least 1; got {self.length}"
            )
        _day(self.out_of_time)

    @property
    def columns(self) -> EventColumns:
        """What the file's columns are."""
        return EventColumns(
            id=self.id,
            time=self.time,
            label=self.label,
            until=self.until,
            categories=self.categories,
            numbers=self.numbers,
            leave_out=self.leave_out,
        )

    @property
    def prepared(self) -> PreparedEvents:
        """The events on disk; read again only if a file has changed."""
        if not self.data:
            raise WeftError(
                "events are read from your file: events(data='transactions.parquet', id='client', "
                "time='when', label='default')"
            )
        stamps = tuple(map(_stamp, event_files(self.data)))
        return _prepared(self, stamps)

    @property
    def inputs(self) -> dict[str, Any]:
        """The embedding's settings that follow from the data."""
        encoders = self.prepared.store.encoders
        return {"channels": channels(encoders), "categories": encoders.sizes}

    @property
    def encoded_events(self) -> dict[str, Any]:
        """How columns are encoded, as plain values that travel with a model."""
        return self.prepared.store.encoders.plain()

    @property
    def metric(self) -> Literal["gini", "accuracy"]:
        """Gini of two classes, accuracy of several."""
        return "gini" if self.classes == 2 else "accuracy"

    @property
    def classes(self) -> int:
        """Distinct labels."""
        return len(self.prepared.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels as they stand in the file; of two, the second is what is predicted."""
        return self.prepared.names

    @property
    def source(self) -> str:
        """The files, and a digest by which a changed file is noticed."""
        found = self.prepared
        return (
            f"{', '.join(found.files)} (sha256 {found.digest}): "
            f"{len(found.store.codes):,} events of {len(found.store):,} clients, label {self.label}"
        )

    def load(self, split: Split) -> EventExamples:
        """One split, always the same for the same files and settings."""
        found = self.prepared
        chosen = np.flatnonzero(found.splits == SPLITS.index(split))
        return EventExamples(found.store, chosen, self.length, found.labels[chosen])

    def baselines(self) -> dict[str, float]:
        """What the number of events says by itself; of several classes, the most frequent one."""
        train, test = self.load("train"), self.load("test")
        if self.metric == "accuracy":
            usual = np.bincount(train.labels).argmax()
            return {"majority class": float((test.labels == usual).mean())}
        own = gini(test.store.lengths[test.clients].astype(float), test.labels)
        other = gini(train.store.lengths[train.clients].astype(float), train.labels)
        return {"no model": 0.0, "number of events": own if other > 0 else -own}

    def show(self, row: np.ndarray) -> str:
        """Events, one on a line: categories by their values, numbers as a model reads them."""
        encoders = self.prepared.store.encoders
        names, codes = encoders.columns.categories, encoders.codes
        lines = []
        for event in row:
            parts = [
                f"{name} {code.named(int(value))}"
                for name, code, value in zip(names, codes, event, strict=False)
            ]
            own = event[len(codes) : len(codes) + len(encoders.numbers)]
            pairs = zip(encoders.columns.numbers, own, strict=True)
            lines.append(", ".join([*parts, *(f"{name} {value:.2f}" for name, value in pairs)]))
        return "\n".join(lines)


def events_from_options(data: Sequence[str], label: str, **given: Any) -> Events:
    """The task of some files, by the options of a command line; None is left out."""
    found = {name: value for name, value in given.items() if value is not None}
    files: Any = data[0] if len(data) == 1 else tuple(data)
    return Events(data=files, label=label, **found)


class PreparedEvents(NamedTuple):
    """All clients of the files, with their classes and splits."""

    store: Store
    labels: np.ndarray  # (clients,) int64; -1: none
    splits: np.ndarray  # (clients,) places in SPLITS; -1: no label
    names: tuple[str, ...]
    files: tuple[str, ...]
    digest: str
    remarks: tuple[str, ...]


@lru_cache(maxsize=2)
def _prepared(task: Events, stamps: tuple[tuple[str, int, int], ...]) -> PreparedEvents:
    files = [Path(path) for path, _, _ in stamps]
    given = {name: getattr(task, name) for name in ("until", "categories", "numbers", "leave_out")}
    wanted = {
        "version": VERSION,
        "files": [list(stamp) for stamp in stamps],
        "keys": [task.id, task.time, task.label],
        "scale": task.scale,
        "out_of_time": task.out_of_time,
        "shares": [task.valid_share, task.test_share, task.seed],
        **{name: value and list(value) for name, value in given.items() if name != "until"},
        "until": task.until,
    }

    def build(folder: Path) -> Arrays:
        store = build_store(
            files,
            task.columns,
            folder,
            fit_on=lambda ids: _parts(task, ids) == TRAIN,
            fit_before=_day(task.out_of_time),
            scale=task.scale,
        )
        return {
            "starts": store.starts,
            "until": store.until,
            "ids": np.array(store.ids),
            "labels": np.array([label or "" for label in store.labels]),
            "remarks": np.array(store.remarks, dtype=str),
            "encoders": np.frombuffer(store.encoders.text().encode(), dtype=np.uint8),
            "digest": np.array([_digest(files)]),
        }

    found = cached("events", wanted, build)
    store = stored(found)
    labels, names = _classes(store)
    unlabelled = int((labels < 0).sum())
    labels = np.where(store.lengths > 0, labels, -1)  # nothing to read: the store's remarks say so
    splits = np.where(labels < 0, -1, _splits(task, store))
    _check_splits(splits, labels, names, task)
    remarks = [*store.remarks]
    remarks += [f"{unlabelled:,} clients have no {task.label}: left out"] if unlabelled else []
    return PreparedEvents(
        store,
        labels,
        splits,
        names,
        tuple(path.name for path in files),
        str(found["digest"][0]),
        tuple(remarks),
    )


def stored(found: Arrays) -> Store:
    """The store that these arrays hold."""
    encoders: Encoders = encoders_of(found["encoders"].tobytes().decode())
    return Store(
        encoders=encoders,
        starts=found["starts"],
        codes=found["codes"],
        numbers=found["numbers"],
        times=found["times"],
        ids=tuple(found["ids"].tolist()),
        labels=tuple(label or None for label in found["labels"].tolist()),
        until=found["until"],
        remarks=tuple(found["remarks"].tolist()),
    )


def _classes(store: Store) -> tuple[np.ndarray, tuple[str, ...]]:
    names = tuple(sorted({label for label in store.labels if label is not None}, key=_in_order))
    if len(names) < 2:
        raise WeftError(
            f"there is nothing to learn: every client has the label {names[0] if names else None!r}"
        )
    places = {name: place for place, name in enumerate(names)}
    return np.array([places.get(each or "", -1) for each in store.labels], dtype=np.int64), names


def _in_order(label: str) -> tuple[float, str]:
    """Numbers by their size, then texts."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def _parts(task: Events, ids: Sequence[str]) -> np.ndarray:
    """The split of each client by its id alone."""
    test = 0.0 if task.out_of_time else task.test_share
    shares = np.array([_share(each, task.seed) for each in ids])
    return np.select([shares < test, shares < test + task.valid_share], [TEST, VALID], TRAIN)


def _share(client: str, seed: int) -> float:
    """A number in [0, 1) that follows from the id."""
    salt = seed.to_bytes(16, "little", signed=True)
    found = hashlib.blake2b(client.encode(), digest_size=8, salt=salt).digest()
    return int.from_bytes(found, "little") / 2**64


def _splits(task: Events, store: Store) -> np.ndarray:
    splits = _parts(task, store.ids)
    return np.where(store.until >= _day(task.out_of_time), TEST, splits)


def _check_splits(
    splits: np.ndarray, labels: np.ndarray, names: tuple[str, ...], task: Events
) -> None:
    """Every split has a client, and of two labels both."""
    way_out = f"out_of_time={task.out_of_time!r}; give more clients, another date or larger shares"
    for place, split in enumerate(SPLITS):
        own = labels[splits == place]
        if not len(own):
            raise WeftError(
                f"there is no client for {split}: {int((splits >= 0).sum()):,} clients have a "
                f"label, {way_out}"
            )
        if len(names) == 2 and (own == own[0]).all():
            raise WeftError(
                f"all {len(own):,} clients of {split} have the label {names[own[0]]!r}: nothing "
                f"can be ranked there, {way_out}"
            )


def _day(date: str) -> float:
    """Days since 1970 of an ISO date; infinity for none."""
    if not date:
        return float("inf")
    try:
        return datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp() / SECONDS
    except ValueError as cause:
        raise WeftError(f"out_of_time is a date such as 2024-07-01; got {date!r}") from cause


def _stamp(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path.resolve()), found.st_mtime_ns, found.st_size


def _digest(files: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    return found.hexdigest()[:12]

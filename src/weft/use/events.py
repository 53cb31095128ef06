"""Predictions for clients, from files of their events: Parquet or CSV of any size.

    for row in weft.predict_events(model, "transactions.parquet", proba=True):
        print(row)                       # {"client": "c17", "prediction": "1", "p(0)": ..., ...}

Events are encoded as the model's training data was, into a folder that is removed again; then
clients are read one batch after another. Memory holds a piece of the file, a batch, and a few
numbers for each client. A client without an event that may be read keeps its place, without a
prediction.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.errors import WeftError
from weft.events.encoders import encoders_of
from weft.events.pieces import event_files, names_of
from weft.events.rows import padded
from weft.events.store import Store, build_store
from weft.metrics import auc_error
from weft.models.usage.predict import answers, batches_of
from weft.models.usage.record import Usage
from weft.training.scores.ranking import gini

PREDICTION = "prediction"
EVENTS = 65_536  # of a batch, padding included
CHUNK = 2048  # clients that are sorted by length together


@dataclass
class EventTally:
    """What came of the files."""

    clients: int = 0
    empty: int = 0  # clients without a prediction
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    margins: list[np.ndarray] = field(default_factory=list)  # of clients with a known label
    classes: list[np.ndarray] = field(default_factory=list)
    unseen: int = 0  # clients with a label that the model does not know
    binary: bool = False

    def lines(self) -> list[str]:
        """For people."""
        pace = self.clients / self.seconds if self.seconds else 0.0
        found = [f"{self.clients:,} clients in {self.seconds:.1f} s, {pace:,.0f} per second"]
        found += list(self.remarks)
        if self.empty:
            found.append(
                f"{self.empty:,} clients have no prediction: no event of theirs can be read"
            )
        if self.unseen:
            found.append(
                f"{self.unseen:,} clients have a label that the model never saw: not scored"
            )
        return found + self._scores()

    def _scores(self) -> list[str]:
        if not self.classes:
            return []
        labels, scores = np.concatenate(self.classes), np.concatenate(self.margins)
        if not self.binary:
            right = float((scores == labels).mean())
            return [f"accuracy {right:.4f} on {len(labels):,} clients with a label"]
        positives = int(labels.sum())
        if positives in (0, len(labels)):
            return [f"no Gini: all {len(labels):,} labels are of one class"]
        found = gini(scores, labels)
        error = 2 * auc_error((found + 1) / 2, positives, len(labels) - positives)
        return [f"Gini {found:.4f} ± {error:.4f} on {len(labels):,} clients with a label"]


def predict_events(
    model: Any,
    data: str | Sequence[str],
    *,
    proba: bool = False,
    tally: EventTally | None = None,
    **columns: str | None,
) -> Iterator[dict[str, Any]]:
    """One row for each client, in the order of their first events.

    `columns` are names that differ from the training data's: id=, time=, until=, label=. Labels are
    scored where the file has them.
    """
    usage, tally, began = usage_of(model), tally or EventTally(), time.perf_counter()
    files = event_files(data)
    encoders = encoders_of(usage.events)
    own = {name: value for name, value in columns.items() if value is not None}
    wanted = replace(encoders.columns, **own)
    if wanted.label is not None and "label" not in own and wanted.label not in names_of(files[0]):
        wanted = replace(wanted, label=None)
    tally.binary = len(usage.labels) == 2
    with tempfile.TemporaryDirectory(prefix="weft-events-") as scratch:
        store = build_store(files, wanted, Path(scratch), encoders=encoders)
        tally.remarks = store.remarks
        for start in range(0, len(store), CHUNK):
            clients = np.arange(start, min(start + CHUNK, len(store)))
            yield from _rows(model, usage, store, clients, wanted.id, proba, tally)
            tally.seconds = time.perf_counter() - began


def usage_of(model: Any) -> Usage:
    """The usage of a model that reads events; else an error that says what to do."""
    usage = getattr(model, "usage", None)
    if usage is None or not usage.events:
        task = "" if usage is None else f" of the task {usage.task!r}"
        raise WeftError(
            f"this model{task} reads no events; `weft train --events FILE --id ... --time ... "
            "--label ...` trains one that does"
        )
    return usage


def _rows(
    model: Any,
    usage: Usage,
    store: Store,
    clients: np.ndarray,
    name: str,
    proba: bool,
    tally: EventTally,
) -> Iterator[dict[str, Any]]:
    """The rows of some clients."""
    lengths = np.minimum(store.lengths[clients], usage.length or store.lengths.max())
    known = clients[lengths > 0]
    scores = scores_of(model, store, known, usage.length)
    _score(usage, store, known, scores, tally)
    shares = answers(scores, usage, True) if proba else [{}] * len(known)
    found = iter(zip(answers(scores, usage, False), shares, strict=True))
    for client, length in zip(clients, lengths, strict=True):
        row: dict[str, Any] = {name: store.ids[client], PREDICTION: None}
        if length:
            row[PREDICTION], own = next(found)
            row |= {f"p({label})": share for label, share in own.items()}
        elif proba:
            row |= {f"p({label})": None for label in usage.labels}
        tally.empty += not length
        tally.clients += 1
        yield row


@torch.no_grad()
def scores_of(model: Any, store: Store, clients: np.ndarray, length: int) -> np.ndarray:
    """The scores (clients, classes) of the last `length` events, float32.

    Neighbours in length share a batch.
    """
    lengths = np.minimum(store.lengths[clients], length)
    order = np.argsort(lengths, kind="stable")
    device = next(model.parameters()).device
    found = np.zeros((len(clients), model.config.classes), dtype=np.float32)
    training = model.training
    model.eval()
    try:
        for chosen in batches_of(order, lengths, EVENTS):
            x, valid = padded(store, clients[chosen], length)
            valid = None if valid is None else valid.to(device)
            found[chosen] = model(x.to(device), valid=valid).float().cpu().numpy()
    finally:
        model.train(training)
    return found


def _score(
    usage: Usage, store: Store, clients: np.ndarray, scores: np.ndarray, tally: EventTally
) -> None:
    """Keep what is needed to judge clients whose label is known."""
    places = {str(label): place for place, label in enumerate(usage.labels)}
    labels = [store.labels[client] for client in clients]
    classes = np.array([places.get(label or "", -1) for label in labels], dtype=np.int64)
    tally.unseen += sum(label is not None and label not in places for label in labels)
    chosen = classes >= 0
    if chosen.any():
        own = scores[:, 1].astype(float) - scores[:, 0] if tally.binary else scores.argmax(1)
        tally.margins.append(own[chosen])
        tally.classes.append(classes[chosen])

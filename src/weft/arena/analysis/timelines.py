"""What a model's answer about a client rests on, event by event, as rows of a file.

The answer that is explained is the class that is predicted; of two classes it is the second one,
whose probability ranks clients, so that events above the line speak for it for every client.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.arena.analysis.explain import explain
from weft.arena.experiment.runs import rows_of
from weft.arena.experiment.settings import read_experiment
from weft.arena.tasks.base import Split
from weft.errors import WeftError, suggest
from weft.events.store import Store
from weft.models import load
from weft.objectives.batch import Batch
from weft.rows import Row, append

NAME = "timelines.jsonl"  # in the folder of a run


def write_timelines(
    run: str | Path,
    clients: Sequence[str] = (),
    first: int = 3,
    split: Split = "test",
    device: str | torch.device = "cpu",
) -> list[list[Row]]:
    """The rows of some clients of a run's task, one list each, kept where its report reads them."""
    run = Path(run)
    experiment = read_experiment(run)
    model = load(run, device)
    rows = rows_of(experiment, split)
    chosen = client_rows(rows, clients, first)
    found = [timeline_of(model, rows, row, experiment.task.labels) for row in chosen]
    (run / NAME).unlink(missing_ok=True)
    append(run / NAME, (row for events in found for row in events))
    return found


def client_rows(rows: Any, names: Sequence[str], first: int) -> list[int]:
    """The rows of a split that hold these clients; without names, the `first` ones."""
    store = store_of(rows)
    readable = [row for row in range(len(rows)) if rows.lengths[row] > 0]
    if not names:
        return readable[:first]
    places = {store.ids[rows.clients[row]]: row for row in readable}
    for name in names:
        if name not in places:
            raise WeftError(
                f"this split has no client {name!r} with events; {suggest(name, list(places))}"
            )
    return [places[name] for name in names]


def store_of(rows: Any) -> Store:
    """The events of a split, of a task that has them."""
    store = getattr(rows, "store", None)
    if not isinstance(store, Store):
        raise WeftError(
            "timelines are drawn of clients: train on events, weft train --events FILE ..., or on "
            "transactions(stored=true)"
        )
    return store


def timeline_of(model: Any, rows: Any, row: int, labels: Sequence[Any]) -> list[Row]:
    """One row for each event of a client: what it has to do with the answer."""
    store, device = store_of(rows), next(model.parameters()).device
    batch: Batch = rows.batch(np.array([row])).to(device)
    found = explain(model, batch, 1 if len(labels) == 2 else None)
    client = int(rows.clients[row])
    answer = {
        "client": store.ids[client],
        "answer": str(labels[found.answer]),
        "probability": found.probability,
        "label": str(labels[int(rows.labels[row])]),
    }
    stop = int(store.starts[client + 1])
    return [
        answer
        | {
            "day": float(store.times[place]),
            "influence": float(found.influence[at]),
            "attended": None if found.attended is None else float(found.attended[at]),
            "event": event_in_words(store, place),
        }
        for at, place in enumerate(range(stop - len(found.influence), stop))
    ]


def event_in_words(store: Store, place: int) -> str:
    """The columns of an event, by their names; numbers are turned back from their scales."""
    encoders = store.encoders
    codes = zip(encoders.columns.categories, encoders.codes, store.codes[place], strict=True)
    words = [f"{name} {each.named(int(code))}" for name, each, code in codes]
    numbers = zip(encoders.columns.numbers, encoders.numbers, store.numbers[place], strict=True)
    for name, scale, value in numbers:
        found = scale.decode(float(value))
        words.append(f"{name} missing" if np.isnan(found) else f"{name} {found:,.4g}")
    return ", ".join(words)

"""`weft.fit`: from a table to a model that predicts, in one call.

    model = weft.fit("reviews.csv", text="body", label="stars", minutes=5, out="runs/stars")
    model.predict(["worth every page"], proba=True)

It is the training of `weft train --data`: the table task, the usual small encoder, a run's folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.arena.experiment.results import score_test
from weft.arena.experiment.runs import check_marks, run_of
from weft.arena.experiment.settings import Experiment, write_experiment
from weft.arena.experiment.short import MIXER, budget, short_recipe
from weft.arena.tasks.table.task import table_from_options
from weft.errors import WeftError
from weft.models import load
from weft.scale.mesh import rank
from weft.training import Outcome, Progress, train
from weft.training.settings import device_named

ROWS = "data.jsonl"  # rows that were in memory, in the run's folder


def fit(
    data: Any,
    *,
    text: str = "text",
    label: str = "label",
    second: str | None = None,
    group: str | None = None,
    number: bool = False,
    mixer: str = MIXER,
    minutes: float | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    settings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Any:
    """Train a model on a table; it has `predict`, `scores` (test split), `folder` and `report`.

    `data` is a path (CSV, JSON lines, Parquet), several paths, a pandas DataFrame, or a list of
    dicts or of tuples (text, label) or (text, second, label). `second` makes pairs, `group` keeps
    rows that share its value in one split, `number` predicts
    a number instead of a class. `settings` are further ones: "model.layers=2",
    "training.lr=1e-3". `out` is the run's folder; a run that was stopped goes on there.
    """
    folder = Path(out if out is not None else tempfile.mkdtemp(prefix="weft-"))
    columns = [name for name in (text, second, group, label) if name]
    files = _files(data, folder, columns)
    further = {"second": second, "group": group, "number": number}
    task = table_from_options(files, text, label, **further)
    changes = [*budget(steps, minutes), f"training.device={device}", f"training.seed={seed}"]
    experiment = short_recipe([*changes, *settings], steps, task=task, mixer=mixer).experiment
    outcome = train_in(folder, experiment, progress)
    if outcome.status != "done":
        raise WeftError(f"stopped and saved; the same call with out={str(folder)!r} goes on")
    return finished(folder, experiment)


def train_in(folder: Path, experiment: Experiment, progress: Progress | None = None) -> Outcome:
    """Train an experiment in its folder, with its settings beside it."""
    check_marks(experiment)
    prepared = run_of(experiment)
    if rank() == 0:
        write_experiment(folder, experiment)
    return train(prepared, folder, progress)


def finished(folder: Path, experiment: Experiment) -> Any:
    """The model of a run that is done, with its test scores and its report."""
    from weft.report import write_report

    model: Any = load(folder, device_named(experiment.training.device))
    model.scores = score_test(folder, experiment, model)
    model.folder = folder
    model.report = write_report(folder)
    return model


def _files(data: Any, folder: Path, columns: list[str]) -> str | list[str]:
    """The table as files; rows in memory are written into the folder."""
    if isinstance(data, str | Path):
        return str(data)
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        for name in columns:
            if name not in data.columns:
                have = ", ".join(map(str, data.columns))
                raise WeftError(f"the table has no column {name!r}; it has {have}")
        data = data[columns].to_dict("records")
    rows = list(data)
    if rows and all(isinstance(row, str | Path) for row in rows):
        return [str(row) for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False, default=_plain) for row in _rows(rows, columns)]
    (folder / ROWS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / ROWS)


def _rows(rows: Iterable[Any], columns: list[str]) -> Iterable[dict[str, Any]]:
    for place, row in enumerate(rows, start=1):
        if isinstance(row, Mapping):
            yield {name: row.get(name) for name in columns}
        elif isinstance(row, tuple | list) and len(row) == len(columns):
            yield dict(zip(columns, row, strict=True))
        else:
            raise WeftError(
                f"a row is a dict, or a tuple of {', '.join(columns)}; row {place} is {row!r:.60}"
            )


def _plain(value: Any) -> Any:
    """Numbers of numpy as those of Python."""
    return value.item() if hasattr(value, "item") else str(value)

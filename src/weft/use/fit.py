"""`weft.fit`: from a table to a model that predicts, in one call.

    model = weft.fit("reviews.csv", text="body", label="stars", minutes=5, out="runs/stars")
    model.predict(["worth every page"], proba=True)

It is the training of `weft train --data`: the table task, the usual small encoder, a run's folder.
Events of clients likewise, as `weft train --events`:

    model = weft.fit(events="transactions.parquet", id="client", time="when", label="default")
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from weft.arena.experiment.pace import pace_of
from weft.arena.experiment.results import score_test
from weft.arena.experiment.runs import check_marks, run_of
from weft.arena.experiment.settings import Experiment, write_experiment
from weft.arena.experiment.short import BUCKETED, MIXER, budget, short_recipe
from weft.arena.experiment.time_plan import TimePlan, read_plan, said, time_plan, write_plan
from weft.arena.tasks.events.task import events_from_options
from weft.arena.tasks.table.task import table_from_options
from weft.errors import WeftError
from weft.models import load
from weft.printable import printable
from weft.scale.mesh import rank
from weft.training import Outcome, Progress, Run, train
from weft.training.checkpoints.run_folder import check_place
from weft.training.settings import device_named

ROWS = "data.jsonl"  # rows that were in memory, in the run's folder


def fit(
    data: Any = None,
    *,
    events: str | Sequence[str] | None = None,
    id: str | None = None,
    time: str | None = None,
    until: str | None = None,
    out_of_time: str | None = None,
    last: int | None = None,
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
    "training.lr=1e-3". `out` is the run's folder; a run that was stopped goes on there. `minutes`
    are what the call takes in all; an estimate goes to standard error before the first update.

    `events`, instead of `data`, are files with a row for each event of a client `id` at a `time`;
    the `last` of them are read, none from the date `until` on, and clients that end on the date
    `out_of_time` or later are the test. `weft.predict_events` then answers for other files.
    """
    began = perf_counter()
    folder = Path(out if out is not None else tempfile.mkdtemp(prefix="weft-"))
    check_place(folder)
    if (data is None) == (events is None):
        raise WeftError("fit takes a table, or events=...: one of them")
    if events is not None:
        given = {"id": id, "time": time, "until": until, "out_of_time": out_of_time, "length": last}
        named = [events] if isinstance(events, str) else list(events)
        task: Any = events_from_options(named, label, **given)
        settings = [*BUCKETED, *settings]
    else:
        columns = [name for name in (text, second, group, label) if name]
        files = _files(data, folder, columns)
        further = {"second": second, "group": group, "number": number}
        task = table_from_options(files, text, label, **further)
    changes = [*budget(steps, minutes), f"training.device={device}", f"training.seed={seed}"]
    experiment = short_recipe([*changes, *settings], steps, task=task, mixer=mixer).experiment
    outcome = train_in(folder, experiment, progress or Notes(), began=began)
    if outcome.status != "done":
        raise WeftError(f"stopped and saved; the same call with out={str(folder)!r} goes on")
    return finished(folder, experiment)


class Notes(Progress):
    """Says what a person should know, the estimate above all, and nothing else."""

    def note(self, text: str) -> None:
        print(printable(text), file=sys.stderr)


def train_in(
    folder: Path,
    experiment: Experiment,
    progress: Progress | None = None,
    *,
    began: float | None = None,
    scored: bool = True,
) -> Outcome:
    """Train an experiment in its folder, with its settings beside it.

    A short probe comes first, and an estimate as a note. Minutes count from `began` (of
    `time.perf_counter`) and include the scores of the test split, where they are to follow.
    """
    began = perf_counter() if began is None else began
    check_marks(experiment)
    check_place(folder)
    if experiment.training.mesh is not None:  # a probe would be of one process of several
        prepared = run_of(experiment)
        if rank() == 0:
            write_experiment(folder, experiment)
        return train(prepared, folder, progress)
    plan = read_plan(folder)
    prepared = run_of(experiment, plan)
    if plan is None and not experiment.phase and not (folder / "settings.json").exists():
        plan = _planned(folder, experiment, prepared, progress, began, scored)
        prepared = run_of(experiment, plan)
    write_experiment(folder, experiment)
    reserve = plan.reserve if plan is not None else 0.0
    waited = perf_counter() - began
    return train(prepared, folder, progress, waited=waited, reserve=reserve)


def _planned(
    folder: Path,
    experiment: Experiment,
    prepared: Run,
    progress: Progress | None,
    began: float,
    scored: bool,
) -> TimePlan | None:
    """Measure the pace and say how long it takes; the plan, kept, where minutes are given."""
    pace = pace_of(experiment, prepared)
    rows = {"test": len(experiment.task.load("test"))} if scored else {}
    start = perf_counter() - began
    pace = dataclasses.replace(pace, start=start, rows={**pace.rows, **rows})
    plan = time_plan(experiment.training, pace)
    if progress is not None:
        for line in said([plan], [pace], "for this training"):
            progress.note(line)
    if experiment.training.minutes is None:
        return None
    write_plan(folder, plan)
    return plan


def finished(folder: Path, experiment: Experiment) -> Any:
    """The model of a run that is done, with its test scores and its report."""
    from weft.report import write_report

    model: Any = load(folder, device_named(experiment.training.device))
    plan = read_plan(folder)
    model.scores = score_test(folder, experiment, model, plan and plan.test_rows)
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

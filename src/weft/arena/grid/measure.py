"""What is measured in a cell, and how it becomes a row of `rows.jsonl`.

Every row has the same keys, so that pandas reads the file in one call; what a cell that failed did
not come to is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.arena.analysis.flops import flops_per_token, parameters
from weft.arena.experiment.runs import model_of, objective_of, split_of
from weft.arena.experiment.settings import Experiment
from weft.arena.experiment.time_plan import TRAIN_ROWS, TimePlan
from weft.arena.grid.grid import Cell
from weft.arena.tasks.base import Split
from weft.files import write_json
from weft.metrics import clearly_better, higher_is_better
from weft.metrics import sign as sign_of
from weft.models import load
from weft.printable import printable
from weft.rows import Row, append, read
from weft.training.evaluate import Score, score
from weft.training.run import Outcome
from weft.training.settings import device_named

CLASSES = "classes.json"  # of a cell: what accuracy does not say of its classifier

# Measured in a cell, in the order of the columns.
MEASURES = (
    *("valid_score", "test_score", "train_score", "loss", "best_step", "steps", "train_seconds"),
    *("steps_per_second", "tokens_per_second", "peak_bytes", "parameters", "parameters_ratio"),
    *("flops_per_token", "span", "target", "seconds_to_target", "macro_f1", "calibration_error"),
    *("r2", "mean_absolute_error", "test_rows", "test_rows_whole", "cell_seconds"),
)


def identity(cell: Cell) -> Row:
    """What a cell is: known before it runs."""
    experiment, task, training = cell.experiment, cell.experiment.task, cell.experiment.training
    return {
        "task": task.name,
        "task_spec": str(task),
        "task_title": getattr(task, "title", task.name.replace("_", " ")),
        "data": task.source,
        "metric": objective_of(experiment).metric,
        "mixer": experiment.mixer,
        "label": cell.label,
        "length": cell.length,
        "seed": cell.seed,
        "dense": cell.dense,
        "unfused": experiment.unfused,
        "cell": f"cells/{cell.name}",
        "device": device_named(training.device).type,
        "batch": training.batch,
        "lr": training.lr,
        "schedule": training.schedule,
        "precision": training.precision,
        "budget_steps": training.steps,
        "budget_minutes": training.minutes,
        **experiment.model.sizes(),
    }


def row_of(cell: Cell, status: str, reason: str | None, measured: Row) -> Row:
    """A whole row: every key, measured or not."""
    measured = {key: _finite(value) for key, value in measured.items()}
    found = {key: measured.get(key) for key in MEASURES}
    further = {key: value for key, value in measured.items() if key not in found}
    return {**identity(cell), "status": status, "reason": reason, **found, **further}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sizes(experiment: Experiment, dense: Experiment) -> Row:
    """Parameters, and their ratio to dense attention in the same place."""
    own = count_parameters(experiment)
    return {"parameters": own, "parameters_ratio": own / count_parameters(dense)}


def count_parameters(experiment: Experiment) -> int:
    """Of the model that the task is scored with."""
    return parameters(model_of(experiment))


def outcome_row(outcome: Outcome) -> Row:
    """What the training loop measured."""
    return {
        "valid_score": outcome.best_score if outcome.model == "best" else outcome.score,
        "loss": outcome.loss,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "train_seconds": outcome.seconds,
        "steps_per_second": outcome.steps_per_second,
        "tokens_per_second": outcome.tokens_per_second,
        "peak_bytes": outcome.peak_bytes,
        "parameters": outcome.parameters,
    }


def final_scores(
    folder: Path, experiment: Experiment, outcome: Outcome, plan: TimePlan | None = None
) -> Row:
    """The chosen weights on the test split and on a part of train; groups go to groups.jsonl.

    A plan may say that samples are scored; `test_rows` is then less than `test_rows_whole`.
    """
    model = load(folder / outcome.model, device_named(experiment.training.device))
    training = experiment.training
    few, many = (plan.train_rows, plan.test_rows) if plan is not None else (None, None)

    def scored(split: Split, rows: int | None) -> Score:
        given = {"precision": training.precision, "seed": training.seed}
        source = split_of(experiment, split, rows)
        found = score(model, source, objective_of(experiment), **given)
        assert found is not None  # only `stop` interrupts
        return found

    test, whole = scored("test", many), len(experiment.task.load("test"))
    write_groups(folder, test)
    write_classes(folder, test, getattr(getattr(model, "usage", None), "labels", ()))
    return {
        "test_score": test.score,
        "train_score": scored("train", few or TRAIN_ROWS).score,
        "macro_f1": None if test.classes is None else test.classes.macro_f1,
        "calibration_error": None if test.classes is None else test.classes.calibration_error,
        **_of_numbers(test, experiment.task),
        "flops_per_token": flops_per_token(model_of(experiment), experiment.task.length),
        "test_rows": whole if many is None else many,
        "test_rows_whole": whole,
    }


def _of_numbers(test: Score, task: Any) -> Row:
    """Of a regression: what its mean squared error does not say."""
    if test.numbers is None:
        return {}
    found = test.numbers.row(getattr(getattr(task, "numbers", None), "scale", 1.0))
    return {"r2": found["R²"], "mean_absolute_error": found["mean absolute error"]}


def write_classes(folder: Path, found: Score, labels: Sequence[Any]) -> None:
    """Scores by class, confusions and the reliability curve, where the task has classes."""
    if found.classes is not None:
        write_json(folder / CLASSES, found.classes.row(labels))


def write_groups(folder: Path, found: Score) -> None:
    """Test scores by group, where the task has groups."""
    path = folder / "groups.jsonl"
    path.unlink(missing_ok=True)
    append(
        path,
        [
            {"group": g.name, "right": g.right, "count": g.count, "score": g.accuracy}
            for g in found.groups
        ],
    )


def with_targets(
    rows: Sequence[Row],
    folder: Path,
    target: float | None,
    rules: Mapping[str, float] | None = None,
) -> list[Row]:
    """The rows with the time to accuracy: seconds of training until validation reached the target.

    Without a given target it is what every run of dense attention of that length reached, the least
    of their best scores; if that is no better than a trivial rule (`rules`), nothing was learned
    and there is no target.
    """
    found = []
    for row in rows:
        aim = target if target is not None else _learned_by_dense(rows, row, rules or {})
        seconds = None
        if aim is not None and row["status"] == "done":
            seconds = seconds_to(folder / row["cell"] / "metrics.jsonl", aim, row["metric"])
        found.append({**row, "target": aim, "seconds_to_target": seconds})
    return found


def _learned_by_dense(rows: Sequence[Row], row: Row, rules: Mapping[str, float]) -> float | None:
    aim, length = _reached_by_dense(rows, row), f"({row['length']:,} tokens)"
    own = {name: v for name, v in rules.items() if not name.endswith(" tokens)") or length in name}
    if aim is None or not own:
        return aim
    count = row.get("valid_rows") or row.get("test_rows") or 0
    return aim if clearly_better(row["metric"], aim, own, count) else None


def _reached_by_dense(rows: Sequence[Row], row: Row) -> float | None:
    scores = [
        other["valid_score"]
        for other in rows
        if other["dense"] and other["length"] == row["length"] and other["valid_score"] is not None
    ]
    if not scores:
        return None
    return min(scores) if higher_is_better(row["metric"]) else max(scores)


def seconds_to(metrics: Path, target: float, metric: str) -> float | None:
    """When validation first was as good as the target; None: never."""
    sign = sign_of(metric)
    for row in read(metrics) if metrics.is_file() else []:
        value = row.get("score")
        if row.get("kind") == "valid" and value is not None and sign * value >= sign * target:
            return row["seconds"]
    return None


def reason_of(error: BaseException) -> str:
    """An error in one line of moderate length."""
    text = printable(" ".join(str(error).split()))
    text = text if len(text) <= 300 else text[:299] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine or the GPU had no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    signs = ("allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError | OSError) and any(sign in text for sign in signs)

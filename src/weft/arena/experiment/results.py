"""How good a trained model is: scores on a split, kept in the run's folder as `scores.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.arena.experiment.runs import baselines_of, objective_of, split_of
from weft.arena.experiment.settings import Experiment
from weft.arena.tasks.base import Split
from weft.files import read_json, write_json
from weft.rows import Row
from weft.training import Score, score

SCORES = "scores.json"


def score_split(
    experiment: Experiment, model: Any, split: Split, rows: int | None = None
) -> tuple[Score, Row]:
    """The model on a split, or on a sample of it, and all that is known of that as a row.

    A test split is scored beside trivial rules.
    """
    source = split_of(experiment, split, rows)
    found = score(model, source, objective_of(experiment), precision=experiment.training.precision)
    assert found is not None  # nothing stops it
    row = {"split": split, "metric": found.metric, **found.row()}
    if rows is not None:
        row["rows of the split"] = len(experiment.task.load(split))
    if split == "test":
        row["trivial rules"] = baselines_of(experiment)
    usage = getattr(model, "usage", None)
    if found.classes is not None:
        row |= found.classes.row(usage.labels if usage is not None else ())
    if found.ranks is not None:
        row |= found.ranks.row()
    if found.numbers is not None:
        row |= found.numbers.row(usage.scale if usage is not None else 1.0)
    return found, row


def score_test(folder: Path, experiment: Experiment, model: Any, rows: int | None = None) -> Row:
    """The scores of the test split, written into the folder."""
    row = score_split(experiment, model, "test", rows)[1]
    write_scores(folder, row)
    return row


def write_scores(folder: Path, row: Row) -> None:
    """Keep the scores of the test split."""
    write_json(folder / SCORES, row)


def read_scores(folder: Path) -> Row | None:
    """What `score_test` wrote."""
    return read_json(folder / SCORES)

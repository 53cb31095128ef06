"""How good a trained model is: scores on a split, kept in the run's folder as `scores.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.arena.experiment.runs import baselines_of, objective_of, split_of
from weft.arena.experiment.settings import Experiment
from weft.files import read_json, write_json
from weft.rows import Row
from weft.training import score

SCORES = "scores.json"


def score_test(folder: Path, experiment: Experiment, model: Any) -> Row:
    """The model on the test split, beside trivial rules; written into the folder."""
    found = score(
        model,
        split_of(experiment, "test"),
        objective_of(experiment),
        precision=experiment.training.precision,
    )
    assert found is not None  # nothing stops it
    row = {"split": "test", "metric": found.metric, **found.row()}
    row["trivial rules"] = baselines_of(experiment)
    if found.classes is not None:
        usage = getattr(model, "usage", None)
        row |= found.classes.row(usage.labels if usage is not None else ())
    write_json(folder / SCORES, row)
    return row


def read_scores(folder: Path) -> Row | None:
    """What `score_test` wrote."""
    return read_json(folder / SCORES)

"""How long an update and the scoring of a row take, from a short probe before any training.

The probe works on 1, 4, 16, ... rows until its time is up, so that a slow mechanism costs little;
a time per row at few rows is a little too long for many. Nothing is compiled for it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from weft.arena.experiment.settings import Experiment
from weft.objectives import Batch
from weft.rows import Row
from weft.training.learner import Learner
from weft.training.precision import Precision
from weft.training.run import Run, Stage

PROBE_SECONDS = 4.0  # for updates, and half of it for scoring
GROWTH = 4  # rows of a measurement, over those of the one before


@dataclass(frozen=True)
class Pace:
    """Seconds of one update and of scoring one row, and what starts before the first update."""

    update: float
    row: float
    start: float = 0.0
    rows: dict[str, int] = dataclasses.field(default_factory=dict)  # of each split

    def as_row(self) -> Row:
        """Flat, for a file of rows."""
        times = {"update": self.update, "row": self.row, "start": self.start}
        return {**times, **{f"{split} rows": count for split, count in self.rows.items()}}


def read_pace(row: Row) -> Pace:
    """What `as_row` wrote."""
    ends = " rows"
    rows = {key.removesuffix(ends): row[key] for key in row if key.endswith(ends)}
    return Pace(row["update"], row["row"], row["start"], rows)


def pace_of(experiment: Experiment, run: Run, limit: float = PROBE_SECONDS) -> Pace:
    """Measure a training of one stage on its own device; `limit` in seconds."""
    (stage,) = run.stages
    device = run.filled_settings.torch_device()
    plain = dataclasses.replace(stage.settings, compile=False, graph=False)
    stage = dataclasses.replace(stage, settings=plain)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        learner = Learner(stage, 0, device)
        batch = stage.source.batch(0)
        update = _seconds_per_row(_update(learner, batch), len(batch), device, limit)
        row = _seconds_per_row(_scoring(learner, stage, batch), len(batch), device, limit / 2)
    valid = getattr(stage.valid, "rows", ())
    return Pace(update * len(batch), row, rows={"valid": len(valid)})


def _update(learner: Learner, batch: Batch) -> Callable[[int], None]:
    def work(rows: int) -> None:
        learner.learn(batch.part(0, rows).to(learner.device), 0)

    return work


def _scoring(learner: Learner, stage: Stage, batch: Batch) -> Callable[[int], None]:
    autocast = Precision(stage.settings.precision, learner.device).autocast
    learner.model.eval()

    @torch.no_grad()
    def work(rows: int) -> None:
        with autocast():
            part = batch.part(0, rows).to(learner.device)
            stage.objective.loss(learner.model, part, learner.generator)

    return work


def _seconds_per_row(
    work: Callable[[int], None], most: int, device: torch.device, limit: float
) -> float:
    """Of the largest number of rows that the limit allows; the least of two at all `most` rows."""

    def timed(rows: int) -> float:
        began = time.perf_counter()
        work(rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    began, rows = time.perf_counter(), 1
    found = timed(rows)  # first allocations are in it
    while time.perf_counter() - began + GROWTH * found < limit:
        larger = min(rows * GROWTH, most)
        again = timed(larger) / larger
        if larger == rows:  # all of them: once more, and the better one
            return min(found / rows, again)
        rows, found = larger, again * larger
    return found / rows

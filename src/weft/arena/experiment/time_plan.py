"""What fits into minutes: how many updates, warm-up, validations, and how many rows are scored.

A budget is what a person waits for one training: its start, its updates, validations, and the
scores at the end. Where scoring every row would take more than its share of the time, a sample is
scored, the same one for all mechanisms of a comparison, and rows and reports say so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.arena.experiment.pace import Pace
from weft.arena.experiment.settings import Experiment
from weft.config import config, read, write
from weft.files import read_json, write_json
from weft.training.settings import TrainingSettings

PLAN = "plan.json"
TOO_FEW = 50  # updates: fewer teach next to nothing
FEW = 100  # updates: enough where a few words tell the label, no more
TRAIN_ROWS = 1000  # of the training split, scored at the end to show how much is overfitted
VALIDATIONS = 10  # in a training, fewer where each would score few rows
LEAST_ROWS = 32  # of a sample
WORTHWHILE = 256  # rows of a validation: fewer validations before fewer rows
SHARES = {"valid": 0.15, "test": 0.12, "train": 0.04, "spans": 0.05}  # of the time, at most
_EASY = "few, enough for an easy task"
_STARTED = 0.3  # of the time that is left for the rest, however long the start takes


@config
class TimePlan:
    """How a training keeps to its minutes; None: every row."""

    updates: int  # expected
    seconds: float  # expected, of all that is waited for
    reserve: float = 0.0  # seconds that stay for what follows the last update
    warmup: int | None = None  # None: as the settings say
    evaluate_every: int | None = None
    valid_rows: int | None = None
    test_rows: int | None = None
    train_rows: int | None = None

    def over(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings with a warm-up and validations that fit."""
        given = {"warmup": self.warmup, "evaluate_every": self.evaluate_every}
        return dataclasses.replace(settings, **{k: v for k, v in given.items() if v is not None})

    def applied(self, experiment: Experiment) -> Experiment:
        """The experiment as it is trained."""
        return dataclasses.replace(experiment, training=self.over(experiment.training))


def time_plan(
    settings: TrainingSettings, own: Pace, every: Sequence[Pace] = (), *, spans: bool = False
) -> TimePlan:
    """The plan of one training among those (`every`) that are scored on the same rows."""
    slowest = max((own, *every), key=lambda pace: pace.row)
    whole = _unlimited(settings, own)
    if settings.minutes is None:
        return whole
    budget = 60 * settings.minutes
    longest = max(_unlimited(settings, pace).seconds for pace in (own, *every))
    if longest * (1 + SHARES["spans"] * spans) <= budget:
        return dataclasses.replace(whole, reserve=_final(own, {}) + _validation(own, None))
    time = max(budget - slowest.start, _STARTED * budget)
    rows, count = _samples(settings, slowest, time)
    final = _final(own, rows) + SHARES["spans"] * time * spans
    each = _validation(own, rows.get("valid"))
    if settings.evaluate_every:
        share = settings.evaluate_every / (settings.evaluate_every * own.update + each)
        updates = (time - final) * share
    else:
        updates = (time - final - count * each) / own.update
    made = max(1, min(settings.steps, int(updates)))
    interval = None if settings.evaluate_every else max(1, math.ceil(made / count))
    return TimePlan(
        updates=made,
        seconds=min(budget, whole.seconds) if made < settings.steps else own.start
        + made * own.update + count * each + final,
        reserve=final + each,
        warmup=min(settings.warmup, made // 10),
        evaluate_every=interval,
        valid_rows=rows.get("valid"),
        test_rows=rows.get("test"),
        train_rows=rows.get("train"),
    )  # fmt: skip


def write_plan(folder: Path, plan: TimePlan) -> None:
    """Keep the plan, so that a training that goes on later has the one that it began with."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, write(plan))


def read_plan(folder: Path) -> TimePlan | None:
    """What `write_plan` wrote."""
    found = read_json(folder / PLAN)
    return None if found is None else read(TimePlan, found, PLAN)


def _unlimited(settings: TrainingSettings, pace: Pace) -> TimePlan:
    """All updates, every row."""
    count = settings.steps / settings.evaluation_interval
    seconds = pace.start + settings.steps * pace.update
    seconds += count * _validation(pace, None) + _final(pace, {})
    return TimePlan(updates=settings.steps, seconds=seconds)


def _validation(pace: Pace, rows: int | None) -> float:
    return pace.row * (pace.rows.get("valid", 0) if rows is None else rows)


def _final(pace: Pace, rows: Mapping[str, int | None]) -> float:
    """Seconds of the scores at the end; splits that are not scored are not in `pace.rows`."""
    usual = {"test": pace.rows.get("test", 0), "train": min(pace.rows.get("train", 0), TRAIN_ROWS)}
    return pace.row * sum(rows.get(split) or count for split, count in usual.items() if count)


def _samples(
    settings: TrainingSettings, pace: Pace, time: float
) -> tuple[dict[str, int | None], int]:
    """Rows of each split that fit their shares of the time, and the number of validations."""

    def fitting(split: str, most: int, times: int = 1) -> int:
        fits = int(SHARES[split] * time / (times * max(pace.row, 1e-9)))
        return min(most, max(LEAST_ROWS, fits))

    valid = pace.rows.get("valid", 0)
    enough = min(valid, WORTHWHILE)
    counts = (n for n in range(VALIDATIONS, 2, -1) if fitting("valid", valid, n) >= enough)
    count = next(counts, 2)
    if settings.evaluate_every:
        updates = max(1.0, time * (1 - sum(SHARES.values())) / pace.update)
        count = max(1, math.ceil(updates / settings.evaluate_every))
    rows: dict[str, int | None] = {"valid": fitting("valid", valid, count)}
    for split, most in (("test", math.inf), ("train", TRAIN_ROWS)):
        own = int(min(pace.rows.get(split, 0), most))
        rows[split] = fitting(split, own) if own else None
    if rows["valid"] == valid:
        rows["valid"] = None
    if rows["test"] == pace.rows.get("test"):
        rows["test"] = None
    return rows, count


def said(plans: Sequence[TimePlan], paces: Sequence[Pace], what: str, jobs: int = 1) -> list[str]:
    """The estimate in words: how long, how many updates, and what is scored on a sample."""
    seconds = sum(plan.seconds for plan in plans) / max(1, min(jobs, len(plans)))
    least, most = (pick(plan.updates for plan in plans) for pick in (min, max))
    counts = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    each = " each" if len(plans) > 1 else ""
    line = f"about {duration(seconds)} {what}; {counts} update{'s' * (most != 1)}{each}"
    if least < FEW:
        bound, few = (TOO_FEW, "too few to learn") if least < TOO_FEW else (FEW, _EASY)
        some = "" if most < bound else " for some"
        line += f": {few}{some}; more minutes or steps, shorter texts or a smaller model help"
    lines = [line]
    for split in ("valid", "test"):
        rows = next((n for plan in plans if (n := getattr(plan, f"{split}_rows"))), None)
        whole = max((pace.rows.get(split, 0) for pace in paces), default=0)
        if rows is not None:
            lines.append(f"to keep to the time, {split} is scored on {rows:,} of {whole:,} rows")
    return lines


def duration(seconds: float) -> str:
    """For people: 40 -> '40 seconds', 700 -> '12 minutes'."""
    for size, name in ((3600.0, "hour"), (60.0, "minute")):
        if seconds >= 1.5 * size:
            count = seconds / size
            shown = f"{count:.1f}" if count < 5 and name == "hour" else f"{count:.0f}"
            return f"{shown} {name}s"
    shown = max(1, round(seconds))
    return f"{shown} second{'s' * (shown != 1)}"

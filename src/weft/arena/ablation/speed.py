"""How fast each modification trains: alone on the device, in turns.

Trainings that run at the same time slow one another down, so their steps per second say little.
Here one process holds all models, and they take turns of a few updates: drift and a busy machine
fall on all of them alike. The figure is the median of the turns.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from weft.arena.ablation.ablate import Ablation, Modification
from weft.arena.experiment.runs import marks_taken, model_of, run_of
from weft.environment import environment
from weft.objectives import Batch
from weft.rows import Row, append
from weft.training.learner import Learner
from weft.training.run import Stage
from weft.training.settings import device_named

WARM_UP = 3  # updates before the first turn


def measure_speed(
    wanted: Ablation,
    folder: Path,
    *,
    rounds: int = 7,
    updates: int = 10,
    told: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Write RUN/speed.jsonl: median steps per second of each modification that can be trained."""
    stage = run_of(wanted.modifications[0].experiment).stages[0]
    device = stage.settings.torch_device()
    batch = stage.source.batch(0).to(device)
    turns: dict[str, Callable[[int], None]] = {}
    for own in wanted.modifications:
        try:
            turns[own.name] = _training(own, stage, batch, device)
        except Exception as error:  # its cells say the same, in a row
            told(f"{own.name} is not timed: {error}")
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, train in turns.items():
            began = time.perf_counter()
            train(updates)
            seconds[name].append((time.perf_counter() - began) / updates)
    rows = [_row(name, own, wanted, rounds * updates) for name, own in seconds.items()]
    path = folder / "speed.jsonl"
    path.unlink(missing_ok=True)
    append(path, rows)
    return rows


def _training(
    own: Modification, base: Stage, batch: Batch, device: torch.device
) -> Callable[[int], None]:
    """Updates of a model on one batch, after a warm-up."""
    settings = own.experiment.training
    stage = dataclasses.replace(base, model=model_of(own.experiment), settings=settings)
    known = marks_taken(stage.model, stage.objective)
    marks = {name: mark for name, mark in batch.marks.items() if name in known}
    batch = dataclasses.replace(batch, marks=marks)
    learner = Learner(stage, settings.seed, device)
    made = 0

    def train(updates: int) -> None:
        nonlocal made
        for _ in range(updates):
            learner.step(batch, made, made)
            made += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    train(WARM_UP)
    return train


def _row(name: str, seconds: list[float], wanted: Ablation, updates: int) -> Row:
    first = wanted.grid().cells()[0]
    ordered = sorted(seconds)
    return {
        "label": name,
        "length": first.length,
        "steps_per_second": 1 / statistics.median(seconds),
        "median_s": statistics.median(seconds),
        "low_s": ordered[len(ordered) // 4],
        "high_s": ordered[(3 * len(ordered)) // 4],
        "rounds": len(seconds),
        "updates": updates,
        **environment(device_named(first.experiment.training.device).type),
    }

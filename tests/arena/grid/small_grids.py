"""Grids of small trainings, and the verb that runs them."""

import os
import subprocess
import sys
from pathlib import Path

from weft.arena.experiment.model import Model
from weft.arena.experiment.settings import Experiment, Recipe
from weft.arena.grid.grid import Grid, contenders, with_dense
from weft.arena.grid.measure import row_of
from weft.config import changed
from weft.training.settings import TrainingSettings

TASK = "key_value(pairs=4, symbols=8, values=4, train=64, valid=16, test=16)"
BASE = Experiment(
    task=TASK,
    model=changed(Model(), {"layers": 1, "dim": 16, "heads": 2}),
    training=TrainingSettings(steps=4, batch=8, device="cpu"),
)
SMALL = ["model.layers=1", "model.dim=8", "model.heads=1", "training.batch=8", "training.warmup=0"]


def grid(mixers="full", **given):
    found = contenders(Recipe(experiment=BASE), mixers)
    return Grid(contenders=with_dense(found, BASE), **given)


def weft(*args, **given):
    """`python -m weft compare ...` with the plugin of the tests, in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    changes = [part for change in SMALL for part in ("--set", change)]
    return subprocess.Popen(
        [sys.executable, "-m", "weft", "compare", "--plugin", "arena_plugin", *args, *changes],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **given,
    )


def finished(process, seconds=240):
    shown, _ = process.communicate(timeout=seconds)
    return process.returncode, shown


def ended(cell, status="done", **measured):
    return row_of(cell, status, None if status == "done" else "why", measured)

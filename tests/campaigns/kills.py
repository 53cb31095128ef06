"""kill -9 at random moments: single and staged trainings, and a grid with its cells.

    python tests/campaigns/kills.py FOLDER --kills 100 --seed 1 [--kind single]

A killed run is begun again until it ends; then it equals an undisturbed one: weights and models bit
by bit, every row of metrics once, nothing left behind. A grid is killed as a machine that is
switched off: itself and its cells. Recorded updates need a CUDA device (`--kind recorded`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import kill_runs  # after the path is set
from tiny_runs import assert_same_run, one_stage, two_stages

OFTEN = {"steps": 5, "log_every": 1, "save_every": 1, "evaluate_every": 2}
RUNS = {
    "single": lambda: one_stage(**OFTEN),
    "staged": lambda: two_stages(**OFTEN),
    # Long beside the seconds that a process needs before its first update on a GPU.
    "recorded": lambda: one_stage(
        device="cuda", graph=True, precision="bfloat16", **{**OFTEN, "steps": 300}
    ),
}
TASK = "key_value(pairs=4, symbols=8, values=4, train=64, valid=16, test=16)"


def trainings(folder: Path, kind: str, kills: int, seed: int) -> int:
    """Kill trainings of a kind until there were so many kills; how many found work done before."""
    kill_runs.run = RUNS[kind]
    folder.mkdir(parents=True)
    start, saved = time.monotonic(), []
    assert kill_runs.ended(kill_runs.life(folder / "undisturbed")) == 0
    duration = time.monotonic() - start

    def see(place: Path) -> None:
        saved.append(any(place.glob("checkpoints/*/state.json")))

    assert kill_runs.killed_at_moments(folder / "killed", kills, seed, duration, see) == kills
    return sum(saved)


def grid(folder: Path) -> None:
    """Two mechanisms, each for a seed."""
    from weft.arena.experiment.model import Model
    from weft.arena.experiment.settings import Experiment, Recipe
    from weft.arena.grid.compare import compare
    from weft.arena.grid.grid import Grid, contenders
    from weft.config import changed
    from weft.training.settings import TrainingSettings

    base = Experiment(
        task=TASK,
        model=changed(Model(), {"layers": 1, "dim": 16, "heads": 2}),
        training=TrainingSettings(steps=40, batch=8, device="cpu", save_every=2),
    )
    compare(Grid(contenders=contenders(Recipe(experiment=base), "full, linformer(rank=2)")), folder)


def begun(folder: Path) -> int:
    """A process that runs the grid."""
    child = os.fork()
    if child == 0:
        grid(folder)
        os._exit(0)
    return child


def killed(child: int) -> None:
    """Kill a grid and what it started."""
    found = Path(f"/proc/{child}/task/{child}/children")
    cells = [int(number) for number in found.read_text().split()] if found.exists() else []
    for process in (child, *cells):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def grids(folder: Path, kills: int, seed: int) -> None:
    """Kill grids until there were so many kills."""
    folder.mkdir(parents=True)
    draw, count, start = random.Random(seed), 0, time.monotonic()
    assert kill_runs.ended(begun(folder / "undisturbed")) == 0
    duration = time.monotonic() - start
    place = folder / "killed"
    while count < kills:
        child = begun(place)
        time.sleep(draw.uniform(0, duration))
        killed(child)
        if kill_runs.ended(child) == 0:
            same_grids(folder / "undisturbed", place)
            shutil.rmtree(place)
        else:
            count += 1
    assert kill_runs.ended(begun(place)) == 0
    same_grids(folder / "undisturbed", place)


def same_grids(one: Path, two: Path) -> None:
    """The same cells with the same trainings, scores and models, each once."""
    names = sorted(path.name for path in (one / "cells").iterdir())
    assert names == sorted(path.name for path in (two / "cells").iterdir())
    for name in names:
        assert_same_run(one / "cells" / name, two / "cells" / name)
    assert scores(one) == scores(two)


def scores(folder: Path) -> list[tuple]:
    """What the rows of a grid say but for times."""
    found = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    kept = ("cell", "status", "score", "valid_score", "steps", "parameters")
    return sorted(tuple(row.get(key) for key in kept) for row in found)


def main() -> None:
    """Run the kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100, help="of each kind of training")
    parser.add_argument("--grid-kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=[*RUNS, "grid"])
    given = parser.parse_args()
    for kind in given.kind or ("single", "staged", "grid"):
        if kind == "grid":
            grids(given.folder / kind, given.grid_kills, given.seed)
            said = f"{given.grid_kills} times"
        else:
            saved = trainings(given.folder / kind, kind, given.kills, given.seed)
            said = f"{given.kills} times, {saved} of them after a checkpoint"
        print(f"{kind}: killed {said}, every end equal", flush=True)


if __name__ == "__main__":
    main()

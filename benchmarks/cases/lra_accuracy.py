"""Accuracy on Long Range Arena: five tasks, eleven mechanisms by the released settings.

    nvidia-cuda-mps-control -d                     # small trainings share a GPU better
    python benchmarks/cases/lra_accuracy.py --out runs/lra --data FOLDER --tasks listops,text,image

FOLDER holds `imdb`, `cifar10` and `peerread` as `weft tasks` describes the files of text, image and
retrieval; ListOps and Pathfinder are generated. --jobs cells run at a time, the cheapest first, or
in the order of a plan file. It is read again after every pause, so it may be edited meanwhile:

    python benchmarks/cases/lra_accuracy.py --out runs/lra --data FOLDER --plan FILE
    # FILE: a line `jobs 8`, then a line for each cell, `TASK MIXER SEED`, in the order to run

A cell that the plan no longer names is stopped. After --until seconds, or when the file OUT/stop
exists, running cells save and stop; the same command resumes them. A cell that fails is retried
without CUDA graphs, then without compiling; one whose loss is not finite is not.

OUT/TASK/cells holds the trainings. OUT/rows.jsonl and OUT/curves.jsonl hold all cells that are
done and are rewritten whenever one ends; OUT/progress.jsonl says where the others are.
`--baselines` writes the trivial rules of the tasks to OUT/baselines.jsonl and trains nothing. Text
is cut to 1,000 bytes, as in the released file.

`--recipes modern` trains the recipes `modern_TASK` instead: rotary positions and self-pretraining;
`--set phase=[]` beside it trains them from scratch. Each goes into an --out of its own.

Only cells that are named are trained, so several commands may share the cells of a table. On a GPU
cells are trained as by `weft compare --fast`. They share it, so their speeds say nothing about
mechanisms.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from weft.arena.experiment.fast import for_speed
from weft.arena.experiment.runs import baselines_of
from weft.arena.experiment.settings import Experiment, Recipe, read_settings
from weft.arena.grid.grid import Cell, Grid, contenders
from weft.arena.grid.measure import row_of, with_targets
from weft.arena.grid.process import CellProcess
from weft.files import write_bytes
from weft.rows import append, read

# Seconds of an H200 that a cell takes alone, estimated where not measured: cheap cells run first.
SECONDS = {
    "image": "sparse_transformer 70, performer 80, sinkhorn 90, synthesizer 110, block_local 160, "
    "full 70, bigbird 70, linformer 70, linear_transformer 70, longformer 770, reformer 830",
    "listops": "linformer 80, linear_transformer 80, block_local 85, longformer 85, performer 90, "
    "full 105, reformer 105, sparse_transformer 110, bigbird 145, sinkhorn 155, synthesizer 200",
    "text": "block_local 105, linformer 106, linear_transformer 106, longformer 116, full 130, "
    "reformer 132, performer 130, sparse_transformer 140, bigbird 180, sinkhorn 200, "
    "synthesizer 250",
    "retrieval": "linformer 75, block_local 80, linear_transformer 85, performer 95, "
    "longformer 125, bigbird 130, sinkhorn 140, reformer 150, sparse_transformer 160, full 230, "
    "synthesizer 400",
    "pathfinder": "linformer 200, sparse_transformer 500, linear_transformer 500, longformer 700, "
    "sinkhorn 700, block_local 800, performer 900, reformer 1200, bigbird 1600, synthesizer 1900, "
    "full 3000",
}
# Parts: rows of like length share one, which saves padding where lengths differ much.
OWN = {
    "listops": ["training.accumulate=4"],
    "text": [
        "task=\"text(length=1000, folder='{data}/imdb')\"",
        # Ten buckets make ten chunks in the released code, whatever the length.
        'mixers.reformer="reformer(chunk=101, rounds=1, buckets=10, lookback=1)"',
    ],
    "image": ["task=\"image(folder='{data}/cifar10')\""],
    "retrieval": ["task=\"retrieval(length=4000, folder='{data}/peerread')\""],
    "pathfinder": [],
}
MODERN = {
    "image": ["task.folder='{data}/cifar10'"],
    "listops": [],
    "text": ["task.folder='{data}/imdb'"],
    "pathfinder": [],
}
OF_RECIPES = {"lra": OWN, "modern": MODERN}
RARELY = ["training.log_every=100", "training.save_minutes=5", "training.save_every=100000"]
ATTEMPTS = ({}, {"graph": False}, {"graph": False, "compile": False})  # settings of each attempt
GRACE = 40  # seconds in which cells that are told to stop may save
PAUSE = 0.2  # seconds between two checks of the running cells
PROGRESS = 10.0  # seconds between rows of progress


class CellName(NamedTuple):
    """Which cell."""

    task: str
    mixer: str
    seed: int = 0


class CellFactory:
    """Makes the cells of all tasks; each recipe is read once."""

    def __init__(self, data: str, changes: list[str], recipes: str = "lra") -> None:
        self.data, self.changes, self.recipes_of = data, changes, recipes
        self.recipes: dict[str, Recipe] = {}

    def recipe(self, task: str) -> Recipe:
        """The settings of a task with the changes of `OF_RECIPES` and of the command line."""
        if task not in self.recipes:
            own = [change.format(data=self.data) for change in OF_RECIPES[self.recipes_of][task]]
            changes = [*own, *self.changes]
            self.recipes[task] = read_settings(f"{self.recipes_of}_{task}", changes)
        return self.recipes[task]

    def contender(self, task: str, mixer: str) -> Experiment:
        """The experiment of one mechanism; on a GPU as `--fast` trains it."""
        (found,) = contenders(self.recipe(task), mixer).values()
        return for_speed(found) if found.training.device == "cuda" else found

    def cell(self, name: CellName, changes: dict[str, bool]) -> tuple[Cell, dict[str, Any]]:
        """The cell with these training settings changed, and the job that its process reads."""
        own = self.contender(name.task, name.mixer)
        own = replace(own, training=replace(own.training, **changes))
        made = {name.mixer: own}
        grid = Grid(contenders=made, seeds=(name.seed,), span_samples=0, base=name.mixer)
        cell = replace(grid.cells()[0], dense=name.mixer == "full")
        dense = self.contender(name.task, "full")
        job = {"experiment": cell.experiment.tables(), "dense": dense.tables(), "plugins": []}
        return cell, {**job, "span_samples": 0, "memory_limit": None}


class Scheduler:
    """Runs cells in processes of their own, a few at a time, in the order of the plan."""

    def __init__(self, out: Path, cells: CellFactory, plan: "Plan", until: float | None) -> None:
        self.out, self.cells, self.plan, self.until = out, cells, plan, until
        self.began, self.reported = time.monotonic(), 0.0
        self.running: dict[CellName, CellProcess] = {}
        self.attempts: dict[CellName, int] = {}
        self.dropped: set[CellName] = set()

    def run(self) -> None:
        """Run until no cell is left or the time is over."""
        while not self.over():
            jobs, wanted = self.plan.read()
            for one in set(self.running) - set(wanted) - self.dropped:
                self.dropped.add(one)
                self.running[one].send(signal.SIGINT)
            waiting = [one for one in wanted if one not in self.running and not self.done(one)]
            if not waiting and not self.running:
                break
            for one in waiting[: max(0, jobs - len(self.running))]:
                self.start(one)
            time.sleep(PAUSE)
            self.check()
        self.stop()
        gather(self.out)

    def over(self) -> bool:
        """Whether it is time to stop."""
        late = self.until is not None and time.monotonic() - self.began > self.until
        return late or (self.out / "stop").exists()

    def done(self, one: CellName) -> bool:
        """Whether the cell has a row."""
        keys = ((row["label"], row["seed"]) for row in found(self.out / one.task / "rows.jsonl"))
        return (one.mixer, one.seed) in keys

    def start(self, one: CellName) -> None:
        """Start a cell, or resume it."""
        cell, job = self.cells.cell(one, ATTEMPTS[self.attempts.setdefault(one, 0)])
        folder = self.out / one.task
        self.running[one] = CellProcess(cell, folder, job, jobs=self.plan.jobs, seconds=None)
        self.say(one, "started")

    def check(self) -> None:
        """Take the rows of cells that have ended, and report where the others are."""
        for one, process in list(self.running.items()):
            if process.ended():
                del self.running[one]
                self.ended(one, process, stopped=one in self.dropped)
                self.dropped.discard(one)
        if time.monotonic() - self.reported > PROGRESS:
            self.reported = time.monotonic()
            rows = [{**one._asdict(), **process.latest()} for one, process in self.running.items()]
            append(self.out / "progress.jsonl", [{"at": self.elapsed, **row} for row in rows])

    def ended(self, one: CellName, process: CellProcess, *, stopped: bool) -> None:
        """Write its row, or leave it to another attempt."""
        result = process.result(stopped=stopped)
        if result is None:
            return self.say(one, "stopped")
        failed = result["status"] == "failed" and "NonFinite" not in (result["reason"] or "")
        if failed and self.attempts[one] + 1 < len(ATTEMPTS):
            return self.retry(one, process, result["reason"])
        row = row_of(process.cell, **result)
        append(self.out / one.task / "rows.jsonl", [row])
        gather(self.out)
        return self.say(one, row["test_score"] if row["status"] == "done" else row["reason"])

    def retry(self, one: CellName, process: CellProcess, reason: str | None) -> None:
        """Forget a failed attempt but for its log; the next one changes settings."""
        self.attempts[one] += 1
        number = self.attempts[one]
        kept = self.out / "failures" / f"{one.task}-{process.folder.name}-{number}.txt"
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(process.folder / "log.txt", kept)
        shutil.rmtree(process.folder)
        self.say(one, f"failed, runs again with {ATTEMPTS[number]}: {reason}")

    def stop(self) -> None:
        """Let running cells save, then kill what is left."""
        for process in self.running.values():
            process.send(signal.SIGINT)
        last = time.monotonic() + GRACE
        while self.running and time.monotonic() < last:
            time.sleep(PAUSE)
            for one, process in list(self.running.items()):
                if process.ended():
                    del self.running[one]
                    self.ended(one, process, stopped=True)
        for process in self.running.values():
            process.kill()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self.began, 1)

    def say(self, one: CellName, what: Any) -> None:
        """Print a line about a cell."""
        print(f"{self.elapsed:.0f} s", *one, what, flush=True)


class Plan:
    """Which cells, in which order, how many at a time: from arguments, or from a file."""

    def __init__(
        self, jobs: int, cells: list[CellName], path: Path | None, recipes: str = "lra"
    ) -> None:
        self.jobs, self.cells, self.path, self.recipes = jobs, cells, path, recipes

    def read(self) -> tuple[int, list[CellName]]:
        """The current plan; a file that cannot be read leaves the last one in force."""
        if self.path is not None:
            try:
                self.jobs, self.cells = parsed(self.path.read_text(), self.recipes)
            except (OSError, ValueError) as cause:
                print(f"the plan {self.path} cannot be read: {cause}", file=sys.stderr)
        return self.jobs, self.cells


def parsed(text: str, recipes: str = "lra") -> tuple[int, list[CellName]]:
    """The text of a plan file; ValueError where a line is neither `jobs N` nor a known cell."""
    jobs, cells = None, []
    for line in filter(str.strip, text.splitlines()):
        words = line.split()
        if len(words) == 2 and words[0] == "jobs":
            jobs = int(words[1])
        elif len(words) == 3 and words[1] in dict(expected(words[0], recipes)):
            cells.append(CellName(words[0], words[1], int(words[2])))
        else:
            raise ValueError(f"a line is `jobs N` or `TASK MIXER SEED`; got {line!r}")
    if jobs is None:
        raise ValueError("it has no line `jobs N`")
    return jobs, cells


def cheap_first(tasks: str, mixers: str, seeds: str, recipes: str = "lra") -> list[CellName]:
    """All cells by expected time; later seeds after all cells of the first one."""
    chosen = [
        (int(seed), seconds, CellName(task, mixer, int(seed)))
        for task in tasks.split(",")
        for mixer, seconds in expected(task, recipes)
        if mixer in mixers.split(",") or mixers == "all"
        for seed in seeds.split(",")
    ]
    return [name for _, _, name in sorted(chosen)]


def expected(task: str, recipes: str = "lra") -> Iterator[tuple[str, float]]:
    """The mechanisms of a task and the seconds that each is expected to take."""
    if task not in OF_RECIPES[recipes]:
        raise ValueError(f"tasks are {', '.join(sorted(OF_RECIPES[recipes]))}; got {task!r}")
    if recipes != "lra":  # not measured: in the order of the recipe
        yield from ((mixer, 0.0) for mixer in read_settings(f"{recipes}_{task}").mixers)
        return
    for entry in SECONDS[task].split(", "):
        mixer, seconds = entry.split()
        yield mixer, float(seconds)


def gather(out: Path) -> None:
    """The rows of all tasks in one file, and the validations of their cells."""
    folders = [out / task for task in OWN]
    rows = [
        row
        for folder in folders
        for row in uncompared(with_targets(found(folder / "rows.jsonl"), folder, None))
    ]
    curves = [
        {"task": row["task"], **{key: row[key] for key in ("label", "seed")}}
        | {key: point[key] for key in ("step", "score", "loss")}
        for row in rows
        for point in found(out / row["task"] / row["cell"] / "metrics.jsonl")
        if point["kind"] == "valid"
    ]
    write(out / "rows.jsonl", rows)
    write(out / "curves.jsonl", curves)


def write(path: Path, rows: list[dict]) -> None:
    """Rows as a whole file."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_bytes(path, text.encode())


def uncompared(rows: list[dict]) -> list[dict]:
    """Rows without the time to accuracy of dense attention, where that was not trained beside."""
    if any(row["label"] == "full" for row in rows):
        return rows
    return [row | {"target": None, "seconds_to_target": None} for row in rows]


def found(path: Path) -> list[dict]:
    """The rows of a file, if it is there."""
    return read(path) if path.exists() else []


def write_baselines(out: Path, cells: CellFactory, tasks: list[str]) -> None:
    """Scores of trivial rules."""
    rules = [
        {"task": task, "rule": rule, "score": score}
        for task in tasks
        for rule, score in baselines_of(cells.recipe(task).experiment).items()
    ]
    write(out / "baselines.jsonl", rules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="data")
    parser.add_argument("--recipes", default="lra", choices=list(OF_RECIPES))
    parser.add_argument("--tasks", help="default: all of the recipes")
    parser.add_argument("--mixers", default="all")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--plan", type=Path, help="file of cells to run, read again")
    parser.add_argument("--jobs", type=int, default=8, help="cells at a time")
    parser.add_argument("--until", type=float, help="seconds after which cells save and stop")
    parser.add_argument("--baselines", action="store_true", help="write trivial rules, train none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    args = parser.parse_args()
    try:
        tasks = args.tasks or ",".join(OF_RECIPES[args.recipes])
        cells = cheap_first(tasks, args.mixers, args.seeds, args.recipes)
    except ValueError as cause:
        parser.error(str(cause))
    args.out.mkdir(parents=True, exist_ok=True)
    changes = [*RARELY, f"training.device={args.device}", *args.changes]
    made = CellFactory(args.data, changes, args.recipes)
    if args.baselines:
        return write_baselines(args.out, made, tasks.split(","))
    plan = Plan(args.jobs, cells, args.plan, args.recipes)
    return Scheduler(args.out, made, plan, args.until).run()


if __name__ == "__main__":
    main()

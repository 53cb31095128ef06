"""Accuracy on Long Range Arena by the released settings: several tasks and mechanisms at a time.

    nvidia-cuda-mps-control -d                     # small trainings share a GPU better
    python benchmarks/cases/lra_accuracy.py --out runs/lra --data FOLDER --tasks listops,text,image

FOLDER holds `imdb` and `cifar10` as `weft tasks` describes the files of text and image; ListOps is
generated. Each task is a comparison of its own in OUT/TASK (a rerun goes on there), all tasks run
at the same time, each with as many cells at once as --jobs gives it, in the order of --mixers. OUT
has rows.jsonl and curves.jsonl of all cells that are done, written anew whenever one ends, and
baselines.jsonl of trivial rules. Text is read up to 1,000 bytes, as the released file has it.

What --mixers does not name is not trained, not even dense attention: several calls may share the
cells of a table.
On a GPU cells are trained as by `weft compare --fast`. They share it, so their speeds say nothing
about mechanisms.
"""

import argparse
import json
import threading
import time
from pathlib import Path

from weft.arena.compare import Listener, Options, compare
from weft.arena.fast import hastened
from weft.arena.files import read_json, replace_file
from weft.arena.grid import Grid, contenders
from weft.arena.settings import read_settings
from weft.rows import read

MIXERS = "full,longformer,bigbird,linformer,linear_transformer,reformer"
# Parts: rows of like length share one, which saves padding where lengths differ much.
OWN = {
    "listops": ["training.accumulate=4"],
    "text": [
        "task.spec=\"text(length=1000, folder='{data}/imdb')\"",
        # Ten buckets make ten chunks in the released code, whatever the length.
        'mixers.reformer="reformer(chunk=101, rounds=1, buckets=10, lookback=1)"',
    ],
    "image": ["task.spec=\"image(folder='{data}/cifar10')\""],
}
RARELY = ["training.log_every=100", "training.save_minutes=5", "training.save_every=100000"]


def grid_of(task: str, mixers: str, data: str, changes: list[str]) -> Grid:
    """The cells of one task."""
    own = [change.format(data=data) for change in OWN[task]]
    found = read_settings(f"lra_{task}", [*own, *changes])
    chosen = contenders(found, mixers)
    if found.experiment.training.device == "cuda":
        chosen = {label: hastened(one) for label, one in chosen.items()}
    return Grid(contenders=chosen, span_samples=0, base=None if "full" in chosen else min(chosen))


class Told(Listener):
    """Gathers rows and prints what ended."""

    def __init__(self, out: Path, tasks: list[str]) -> None:
        self.out, self.tasks, self.lock, self.began = out, tasks, threading.Lock(), time.time()

    def row(self, cell, row) -> None:
        with self.lock:
            score = row["test_score"] if row["status"] == "done" else row["reason"]
            print(f"{time.time() - self.began:.0f} s", row["task"], row["label"], score, flush=True)
            gather(self.out, self.tasks)


def gather(out: Path, tasks: list[str]) -> None:
    """The rows of all tasks in one file; the validations of their cells, and trivial rules."""
    rows = [row for task in tasks for row in uncompared(found(out / task / "rows.jsonl"))]
    curves = [
        {"task": row["task"], **{key: row[key] for key in ("label", "seed")}}
        | {key: point[key] for key in ("step", "score", "loss")}
        for row in rows
        for point in found(out / row["task"] / row["cell"] / "metrics.jsonl")
        if point["kind"] == "valid"
    ]
    rules = [
        {"task": task, "rule": rule, "score": score}
        for task in tasks
        for rule, score in (read_json(out / task / "baselines.json") or {}).items()
    ]
    for name, lines in (("rows", rows), ("curves", curves), ("baselines", rules)):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        replace_file(out / f"{name}.jsonl", text.encode())


def uncompared(rows: list[dict]) -> list[dict]:
    """Rows without what compares them with dense attention, where that was not trained beside."""
    if any(row["label"] == "full" for row in rows):
        return rows
    unknown = dict.fromkeys(("parameters_ratio", "target", "seconds_to_target"))
    return [row | unknown | {"dense": False} for row in rows]


def found(path: Path) -> list[dict]:
    return read(path) if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="data")
    parser.add_argument("--tasks", default="listops,text,image")
    parser.add_argument("--mixers", default=MIXERS)
    parser.add_argument("--jobs", type=int, default=6, help="cells of a task at a time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    args = parser.parse_args()
    tasks = args.tasks.split(",")
    changes = [*RARELY, f"training.device={args.device}", *args.changes]
    grids = {task: grid_of(task, args.mixers, args.data, changes) for task in tasks}
    args.out.mkdir(parents=True, exist_ok=True)
    told = Told(args.out, tasks)
    threads = [
        threading.Thread(
            target=compare, args=(grid, args.out / task, Options(jobs=args.jobs), told), daemon=True
        )
        for task, grid in grids.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gather(args.out, tasks)


if __name__ == "__main__":
    main()

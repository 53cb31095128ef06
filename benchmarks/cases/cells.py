"""Several small trainings at a time on one machine: what digits.py and promoters.py share.

A *cell* is a name and the tables of an experiment. Each is trained in a process and a folder of
its own; its row is appended to OUT/rows.jsonl when its test split is scored. Cells that have a row
are not trained again, one that was stopped goes on. After --seconds all that run are told to stop.
--set training.batch=32 changes a setting of all cells; their rows say with which settings they
were trained.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from weft.arena.experiment.results import score_test
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import recipe, tables_of, write_experiment
from weft.environment import environment
from weft.models import load
from weft.rows import append, read
from weft.training import train

SHOWN = (
    *("cell", "score", "sensitivity", "specificity", "correlation"),
    *("validation", "seconds", "wall", "steps", "parameters"),
)
GRACE = 5.0  # seconds in which a cell may save


def parser(text: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=text.partition("\n")[0])
    found.add_argument("--out", type=Path, required=True)
    found.add_argument("--data", default="", help="a folder of the tasks' folders")
    found.add_argument("--seconds", type=float, default=600.0, help="all told")
    found.add_argument("--minutes", type=float, help="of each training, which then ends early")
    found.add_argument("--jobs", type=int, default=6, help="cells at a time")
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--only", default="", help="cells whose names hold this")
    found.add_argument("--device", default="auto")
    found.add_argument("--set", action="append", default=[], help="training.batch=32, say")
    found.add_argument("--tiny", action="store_true", help="a few updates of small models")
    found.add_argument("--cell", default="", help="train this one alone, in this process")
    return found


def run(script: str, args: argparse.Namespace, cells: dict[str, dict[str, Any]]) -> None:
    """Train one cell here, or all that are left in processes of their own."""
    rows = args.out / "rows.jsonl"
    if args.cell:
        cells[args.cell]["training"]["minutes"] = args.minutes
        return one(args.cell, cells[args.cell], args)
    began = time.monotonic()
    done = {row["cell"] for row in read(rows)} if rows.exists() else set()
    left = [name for name in cells if name not in done and args.only in name]
    running: dict[str, subprocess.Popen[bytes]] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    while (left or running) and time.monotonic() - began < args.seconds - GRACE:
        while left and len(running) < args.jobs:
            name = left.pop(0)
            log = (args.out / f"{name}.log").open("ab")
            command = [sys.executable, script, *sys.argv[1:], "--cell", name]
            threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            running[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **threads}
            )
        time.sleep(0.5)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                print(f"{time.monotonic() - began:6.0f} s  {name}: exit {process.returncode}")
    for name, process in running.items():
        process.send_signal(signal.SIGTERM)
        print(f"{name}: stopped after {args.seconds:.0f} s; the same command goes on", flush=True)
    for process in running.values():
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    for row in read(rows) if rows.exists() else []:
        print(json.dumps({name: row[name] for name in SHOWN if name in row}))


def one(name: str, tables: dict[str, Any], args: argparse.Namespace) -> None:
    """Train and score a cell, and append its row."""
    began, out = time.monotonic(), args.out
    tables["training"]["device"] = args.device
    own = recipe(tables, tables_of(args.set)).experiment
    folder = out / "cells" / name
    write_experiment(folder, own)
    outcome = train(run_of(own), folder)
    if outcome.status != "done":
        return print(f"{name}: {outcome.status}")
    model = load(folder / outcome.model, own.training.torch_device())
    found = score_test(folder, own, model)
    row = {"cell": name, "score": found["score"], "metric": found["metric"]}
    row |= {"count": found["count"], "rules": json.dumps(found.get("trivial rules"))}
    row |= {"validation": outcome.best_score, "steps": outcome.steps, "seconds": outcome.seconds}
    row |= {"wall": time.monotonic() - began, "parameters": outcome.parameters}
    row |= {"peak_bytes": outcome.peak_bytes, "data": own.task.source}
    row |= {"experiment": json.dumps(placeless(own.tables())), **environment(device_of(own))}
    if len(found.get("classes", ())) == 2:
        row |= binary_scores(found["classes"])
    append(out / "rows.jsonl", [row])


def placeless(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables with the name of the data's folder alone: a row says nothing of the machine."""
    task = dict(tables["task"])
    if task.get("folder"):
        task["folder"] = Path(task["folder"]).name
    return {**tables, "task": task}


def device_of(own: Any) -> str:
    return str(own.training.torch_device())


def binary_scores(classes: list[dict[str, Any]]) -> dict[str, Any]:
    """Sensitivity, specificity and Matthews' correlation of two classes, the second positive."""
    negative, positive = classes
    tn, tp = (round(each["recall"] * each["count"]) for each in (negative, positive))
    fp, fn = negative["count"] - tn, positive["count"] - tp
    sides = float(tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return {
        "sensitivity": tp / max(tp + fn, 1),
        "specificity": tn / max(tn + fp, 1),
        "correlation": (tp * tn - fp * fn) / max(sides, 1e-9) ** 0.5,
    }

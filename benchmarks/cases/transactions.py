r"""Default from made-up transactions: the tables of the Convolution Linformer's authors, again.

    export PYTHONPATH=src WEFT_CACHE=$HOME/weft-cache
    nvidia-cuda-mps-control -d                    # small trainings share a GPU better
    python benchmarks/cases/transactions.py --compile --work $HOME/work --out OUT/1.jsonl
    python benchmarks/cases/transactions.py --compile --work $HOME/work --out OUT/2.jsonl \
        --skip OUT/1.jsonl
    cat OUT/1.jsonl OUT/2.jsonl > OUT/all.jsonl; cp OUT/2.npz OUT/all.npz    # scores of both
    python benchmarks/cases/transactions_differences.py OUT/all.jsonl

    python benchmarks/cases/transactions.py --tiny --out tiny.jsonl    # all of it on a CPU, first

Every call ends after `--seconds` (540) and goes on where the rows of --out and --skip end, so a
campaign is as many calls of ten minutes as it takes; --tables and --only choose cells. The last
call's .npz holds the scores of all calls that share --work. Before the GPU has said otherwise, we
expect a cell of main to take 2 to 4 minutes beside five others, one of 1,500 transactions twice
that, and the clients half a minute on 16 cores, once.

Trainings run `--workers` at a time, each in a process of its own, the most important ones first:

    main      LSTM, Longformer, Linformer with a matrix, Convolution Linformer; three seeds
    long      350 against 1,500 transactions, K 128, 256, 400: from scratch, pretrained on 350 for
              the same number of tokens in all, convolutions alone
    shift     two of main again with cyclic-shift augmentation; all rows hold scores after shifts
    search    the authors' twelve rows of Longformer, and twelve of the Convolution Linformer

Each appends a row to OUT when it ends: Gini out of time with its standard error (Hanley and
McNeil), in-time validation, after shifts, seconds, memory. A training that would not end in
`--seconds` is scored with the updates that it made. OUT with the ending .npz holds the scores of
the out-of-time clients, for differences client by client. Cells that have a row in OUT, or in a
file that `--skip` names, are left out. Clients are made once, into $WEFT_CACHE, 50 KB each.
Settings are those of the recipes transactions*; what differs stands in transactions_cells.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transactions_cells import Cell, cells

from weft.rows import append, read

CLOSING = 12.0  # seconds that scoring and shifts take after a training
TINY: dict[str, Any] = {
    "device": "cpu", "compile": False, "steps": 4, "batch": 4, "length": 60, "seeds": 1,
    "train": 60, "valid": 20, "test": 40, "shift_rows": 20, "workers": 1, "threads": 1, "last": 0,
}  # fmt: skip
ATTEMPTS = ({}, {"graph": False}, {"graph": False, "compile": False})


def experiment_of(cell: Cell, args: argparse.Namespace) -> Any:
    """The settings of a cell."""
    from weft.arena.experiment.settings import modified, read_settings

    sizes = [f"task.{name}={getattr(args, name)}" for name in ("train", "valid", "test")]
    sizes += [f"training.batch={args.batch}"]
    cuda = args.device == "cuda"
    fast = ["training.precision=bfloat16", "training.graph=true", "training.prefetch=4"]
    fast += ["training.compile=true"] if args.compile else []
    changes = [*sizes, *(fast if cuda else []), f"training.device={args.device}", *args.change]
    found = read_settings(cell.recipe, [*changes, *cell.changes, f"training.seed={cell.seed}"])
    one = found.mixers.get(cell.mixer or "", found.experiment)
    if cell.mixer and cell.mixer not in found.mixers:
        one = modified(one, {"mixer": cell.mixer})
    if one.phase:
        phase = tuple(
            replace(each, **{"evaluate_every": max(1, own["steps"] // 4), **own})
            for each, own in zip(one.phase, cell.phases.values(), strict=True)
        )
        return replace(one, phase=phase)
    every = max(1, one.training.steps // 5)
    return replace(one, training=replace(one.training, evaluate_every=every))


def run_cell(cell: Cell, args: argparse.Namespace) -> None:
    """Train, score, ask after shifts, write a row."""
    one = experiment_of(cell, args)
    changes = ATTEMPTS[args.attempt]
    minutes = max(5.0, args.until - time.time() - CLOSING) / 60 if args.until else None
    one = replace(one, training=replace(one.training, minutes=minutes, **changes))
    folder = args.work / "runs" / f"{cell.name}-{args.attempt}"
    write_row(cell, one, folder, trained(one, folder), args)


def trained(one: Any, folder: Path) -> Any:
    """The outcome of a run."""
    from weft.arena.experiment.runs import run_of
    from weft.training import train

    return train(run_of(one), folder)


def write_row(cell: Cell, one: Any, folder: Path, outcome: Any, args: argparse.Namespace) -> None:
    """What came of a cell."""
    from weft.environment import environment
    from weft.metrics import auc_error
    from weft.models import load
    from weft.training.scores.ranking import gini

    began = time.perf_counter()
    last = one.task if not one.phase else replace(one.task, length=one.phase[-1].length)
    model = load(folder, args.device)
    rows = last.load("test")
    scores = margins(model, rows, args.device, one.training.precision)
    positives = int(rows.labels.sum())
    found = gini(scores, rows.labels)
    error = 2 * auc_error((found + 1) / 2, positives, len(rows) - positives)
    np.save(args.work / "margins" / f"{cell.name}.npy", scores.astype(np.float32))
    settings = {
        "mixer": one.mixer, "length": last.length, "layers": one.model.sizes()["layers"],
        "dim": one.model.sizes()["dim"], "heads": one.model.sizes()["heads"],
        "dropout": one.model.part.stack.dropout, "batch": one.training.batch,
        "precision": one.training.precision,
    }  # fmt: skip
    row = {
        "case": "transactions", "table": cell.table, "label": cell.label, "seed": cell.seed,
        "name": cell.name,
        "gini": found, "gini error": error, "valid gini": outcome.best_score,
        "shift rows": min(args.shift_rows, len(rows)), **shifted(model, rows, one, args),
        **settings, "clients": args.train, "test clients": len(rows), "steps": outcome.steps,
        "planned steps": sum(phase.over(one.training).steps for phase in one.phase)
        or one.training.steps,
        "tokens": outcome.tokens, "seconds": outcome.seconds,
        "steps per second": outcome.steps_per_second, "peak bytes": outcome.peak_bytes,
        "parameters": outcome.parameters, "workers": args.workers,
        "seconds of scores": time.perf_counter() - began, "attempt": args.attempt,
        "graph": one.training.graph, "compile": one.training.compile,
        **environment(args.device),
    }  # fmt: skip
    append(args.out, [row])


def margins(model: Any, rows: Any, device: str, precision: Any, size: int = 256) -> np.ndarray:
    """Log-odds of default of every row: (rows,) float64."""
    import torch

    from weft.training.precision import Precision

    found = np.zeros(len(rows))
    order = np.argsort(-rows.lengths, kind="stable")
    with torch.no_grad():
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = rows.batch(chosen).to(device)
            with Precision(precision, torch.device(device)).autocast():
                scores = model(batch.x, **batch.given).double()
            found[chosen] = (scores[:, 1] - scores[:, 0]).cpu().numpy()
    return found


def shifted(model: Any, rows: Any, one: Any, args: argparse.Namespace) -> dict[str, float | None]:
    """The shift test of `weft shift`: Gini after each move, and how much scores changed."""
    from weft.arena.analysis.shift import Move, shift_test
    from weft.arena.experiment.runs import objective_of

    count = min(args.shift_rows, len(rows))
    edges = range(0, count, 256)
    source = [rows.batch(np.arange(at, min(at + 256, count))) for at in edges]
    source = [batch.to(args.device) for batch in source]
    moves = [Move(by, cyclic) for by in (1, 64) for cyclic in (False, True)]
    found = shift_test(model, source, objective_of(one), moves, one.training.precision)
    row: dict[str, float | None] = {}
    for each in found:
        row[f"gini, {each.move}"] = each.score
        row[f"change, {each.move}"] = each.change
    return row


def schedule(args: argparse.Namespace) -> None:
    """Run the cells, `--workers` at a time, until the time is over."""
    began = time.monotonic()
    args.until = time.time() + args.seconds
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in ("margins", "logs"):
        (args.work / name).mkdir(parents=True, exist_ok=True)
    make_clients(args)
    print(f"{time.monotonic() - began:.0f} s: clients are made", flush=True)
    finished = done(args)
    waiting = [cell for cell in chosen(args) if cell.name not in finished]
    running: dict[str, tuple[Cell, int, subprocess.Popen[bytes]]] = {}
    while (waiting or running) and time.monotonic() - began < args.seconds:
        late = args.seconds - (time.monotonic() - began) < args.last
        while waiting and len(running) < args.workers and not late:
            cell = waiting.pop(0)
            running[cell.name] = cell, 0, started(cell, args, 0)
        time.sleep(0.3)
        for name, (cell, attempt, process) in list(running.items()):
            if process.poll() is None:
                continue
            del running[name]
            gather(args)
            said = failure(name, args) if process.returncode else ""
            print(f"{time.monotonic() - began:.0f} s: {name} ended {said}", flush=True)
            if process.returncode and attempt + 1 < len(ATTEMPTS):
                running[name] = cell, attempt + 1, started(cell, args, attempt + 1)
    for _, _, process in running.values():
        process.kill()
    gather(args)
    print(f"{len(waiting)} cells were not started, {len(running)} not finished", flush=True)


def failure(name: str, args: argparse.Namespace) -> str:
    """The last line of a cell's log, whose end is kept beside OUT."""
    text = (args.work / "logs" / name).read_text(errors="replace").strip()
    with args.out.with_suffix(".failures.txt").open("a") as file:
        file.write(f"==== {name}\n{text[-4000:]}\n")
    return (text.splitlines() or [""])[-1][-300:]


def make_clients(args: argparse.Namespace) -> None:
    """Into the cache, once."""
    from weft.arena.tasks.transactions.task import Transactions

    sizes = {name: getattr(args, name) for name in ("train", "valid", "test")}
    task = Transactions(stored=True, **sizes)
    splits = ("train", "valid", "test")
    with ThreadPoolExecutor() as pool:
        for split, rows in zip(splits, pool.map(task.load, splits), strict=True):
            np.save(args.work / "margins" / f"labels-{split}.npy", rows.labels.astype(np.uint8))


def started(cell: Cell, args: argparse.Namespace, attempt: int) -> subprocess.Popen[bytes]:
    """A process for the cell; later attempts do without recorded, then compiled updates."""
    own = ["--cell", cell.name, "--attempt", str(attempt), "--until", str(args.until)]
    command = [sys.executable, __file__, *sys.argv[1:], *own]
    threads = {name: str(args.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with (args.work / "logs" / cell.name).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **threads}
        )


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells of `--tables`, in their order."""
    every = cells(args.steps, args.seeds, args.length)
    names, parts = args.tables.split(","), args.only.split(",")
    found = [cell for cell in every if any(cell.table.startswith(name) for name in names)]
    return [cell for cell in found if any(part in cell.label for part in parts)]


def done(args: argparse.Namespace) -> set[str]:
    """The cells that have a row."""
    files = [args.out, *args.skip]
    rows = [row for path in files if path.exists() for row in read(path)]
    return {Cell(row["table"], row["label"], row["seed"]).name for row in rows}


def gather(args: argparse.Namespace) -> None:
    """The scores of all cells so far as one file."""
    found = {path.stem: np.load(path) for path in sorted((args.work / "margins").glob("*.npy"))}
    scratch = args.out.with_suffix(".part.npz")
    np.savez_compressed(scratch, **{k: v for k, v in found.items() if not k.startswith("search")})
    scratch.replace(args.out.with_suffix(".npz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a file of rows, .jsonl")
    parser.add_argument("--work", type=Path, help="trainings; default: OUT.work")
    parser.add_argument("--skip", type=Path, nargs="*", default=[], help="files of rows")
    parser.add_argument("--tables", default="main,shift,long,search")
    parser.add_argument("--only", default="", help="cells with one of these in their label")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--last", type=float, default=30, help="start nothing in the last seconds")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4000, help="of a training of the main table")
    parser.add_argument("--length", type=int, default=750, help="transactions of the main table")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shift-rows", type=int, default=20_000, help="clients that are moved")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=200_000, help="clients")
    parser.add_argument("--valid", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=60_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--change", nargs="*", default=[], help="of every cell's settings")
    parser.add_argument("--tiny", action="store_true", help="a few updates on a CPU: does it run?")
    parser.add_argument("--cell", help="train this one and end")
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--until", type=float, help="the time of day by which the cell ends")
    args = parser.parse_args()
    if args.tiny:
        vars(args).update(TINY)
    args.work = args.work or args.out.with_suffix(".work")
    if not args.cell:
        return schedule(args)
    return run_cell({cell.name: cell for cell in chosen(args)}[args.cell], args)


if __name__ == "__main__":
    main()

"""Default from made-up transactions: the tables of the Convolution Linformer's authors, again.

    nvidia-cuda-mps-control -d                    # small trainings share a GPU better
    python benchmarks/cases/transactions.py --out runs/transactions --seconds 540

Trainings run `--jobs` at a time, each in a process of its own, the most important ones first:

    main      LSTM, Longformer, Linformer with a matrix, Convolution Linformer; three seeds
    shift     the last two again with cyclic-shift augmentation; all are asked after shifts
    long      350 against 1,500 transactions, K 128, 256, 400: from scratch, pretrained on 350 for
              the same number of tokens in all, convolutions alone
    search    the authors' twelve rows of Longformer, and twelve of the Convolution Linformer

Each appends a row to OUT/rows.jsonl when it ends: Gini out of time with its standard error (Hanley
and McNeil), in-time validation, after shifts, seconds, memory. OUT/margins.npz holds the scores of
the out-of-time clients, for differences client by client: `--summary OUT`. Cells that have a row in
OUT, or in a file that `--skip` names, are left out. Clients are made once, into $WEFT_CACHE: 14 GB.
Settings are those of the recipes transactions*; what differs stands in `cells`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from weft.rows import append, read

CONVOLUTION = "linformer(compress='convolution', width={width})"
LONGFORMER = "longformer(window={reach}, global_first=0, global_projections=false)"
MATRIX = "linformer(rank={rank})"
ROLL = ["objective.roll=0.5"]
SHIFT_ROWS = 20_000
ATTEMPTS = ({}, {"graph": False}, {"graph": False, "compile": False})


@dataclass(frozen=True)
class Cell:
    """One training: a recipe, and what differs from it."""

    table: str
    label: str
    seed: int = 0
    recipe: str = "transactions"
    mixer: str | None = None  # of the recipe, by its name, or a spec
    changes: list[str] = field(default_factory=list)
    phases: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique, fit for a file."""
        text = f"{self.table}-{self.label}-{self.seed}"
        return "".join(each if each.isalnum() else "-" for each in text)


def cells(steps: int, seeds: int) -> list[Cell]:
    """All of them, the most important first."""
    main = {
        "LSTM": "lstm",
        "Longformer": "longformer",
        "Linformer (matrix)": "matrix",
        "Convolution Linformer": "convolution",
    }
    found = [
        Cell("main", label, seed, mixer=mixer, changes=[f"training.steps={steps}"])
        for seed in range(seeds)
        for label, mixer in main.items()
    ]
    rolled = ("Convolution Linformer", "Linformer (matrix)")
    found += [
        replace(cell, table="shift", label=f"{cell.label}, rolled", changes=[*cell.changes, *ROLL])
        for cell in found
        if cell.label in rolled
    ]
    return [*found, *long_cells(steps), *longformer_search(steps), *convolution_search(steps)]


def long_cells(steps: int) -> list[Cell]:
    """The authors' seven rows, one more, and LSTM: as many tokens in all, from scratch or not."""
    short = steps  # steps on 350 transactions
    both = max(1, steps // 4)  # steps on 1,500 after them
    alone = both + short * SHORT // LONG  # steps on 1,500 from scratch
    scratch = [f"task.length={LONG}", f"training.steps={alone}", "training.accumulate=4"]
    first = [f"task.length={SHORT}", f"training.steps={steps}", "training.accumulate=1"]

    def once(label: str, mixer: str, changes: list[str]) -> Cell:
        return Cell("long", label, mixer=mixer, changes=changes)

    def twice(label: str, recipe: str, width: int) -> Cell:
        phases = {0: {"steps": short}, 1: {"steps": both, "mixer": {"width": width}}}
        return Cell("long", label, recipe=recipe, phases=phases)

    def width(k: int, length: int = LONG) -> str:
        return CONVOLUTION.format(width=-(-length // k))

    return [
        once("1,500, K 400, from scratch", width(400), scratch),
        twice("1,500, K 400, pretrained", "transactions_long", 4),
        twice("1,500, K 500, pretrained", "transactions_long", 3),
        once("1,500, K 500, from scratch", width(500), scratch),
        twice("1,500, K 400, convolutions alone", "transactions_convolutions", 4),
        once("350, K 128, from scratch", width(128, SHORT), first),
        once("1,500, K 128, from scratch", width(128), scratch),
        once("1,500, K 256, from scratch", width(256), scratch),
        twice("1,500, K 256, pretrained", "transactions_long", 6),
        once("350, LSTM", "lstm", first),
        once("1,500, LSTM", "lstm", scratch),
        once("1,500, Linformer (matrix), from scratch", MATRIX.format(rank=400), scratch),
    ]


SHORT, LONG = 350, 1500
# Heads, width, window (both sides), layers, dropout: the authors' table, row by row.
LONGFORMERS = [
    *((8, 512, 128, 1, 0.1), (8, 256, 128, 1, 0.1), (8, 64, 128, 1, 0.1), (8, 64, 128, 2, 0.1)),
    *((8, 64, 256, 2, 0.1), (8, 64, 64, 2, 0.1), (4, 64, 128, 8, 0.3), (4, 32, 128, 8, 0.3)),
    *((4, 64, 128, 8, 0.5), (4, 64, 128, 12, 0.3), (2, 64, 128, 8, 0.5), (4, 64, 128, 12, 0.6)),
]
# K, heads, width, layers, feed-forward, and a setting where the authors do not say what differed.
CONVOLUTIONS = [
    *((128, 8, 64, 4, 2048, ""), (32, 8, 64, 4, 2048, ""), (64, 8, 64, 4, 2048, "")),
    *((128, 4, 64, 4, 2048, ""), (128, 8, 64, 2, 2048, ""), (128, 8, 64, 4, 2048, "depthwise")),
    *((128, 8, 32, 4, 2048, ""), (128, 8, 64, 4, 2048, "one for keys and values")),
    *((128, 8, 64, 3, 2048, ""), (128, 8, 64, 2, 512, ""), (128, 8, 64, 2, 256, "")),
    (128, 8, 128, 2, 512, ""),
]


def longformer_search(steps: int) -> list[Cell]:
    """Twelve rows, on 350 transactions as theirs, with half the updates."""
    found = []
    for row, (heads, dim, window, layers, dropout) in enumerate(LONGFORMERS, start=1):
        changes = [f"model.heads={heads}", f"model.dim={dim}", f"model.layers={layers}"]
        changes += [f"model.stack.dropout={dropout}", *searched(steps)]
        changes += ["training.lr=1e-3"] if layers > 4 or dim > 128 else []
        mixer = LONGFORMER.format(reach=window // 2 + 1)
        found.append(Cell("search Longformer", f"row {row:02}", mixer=mixer, changes=changes))
    return found


def convolution_search(steps: int) -> list[Cell]:
    """Twelve rows; where theirs say nothing that differs, `more` does."""
    found = []
    for row, (k, heads, dim, layers, inner, more) in enumerate(CONVOLUTIONS, start=1):
        mixer = CONVOLUTION.format(width=-(-SHORT // k))
        if more == "depthwise":
            mixer = mixer.replace("convolution", more)
        elif more:
            mixer = mixer.replace(")", ", sharing='kv')")
        changes = [f"model.heads={heads}", f"model.dim={dim}", f"model.layers={layers}"]
        changes += [f"model.expansion={inner // dim}", "model.stack.dropout=0.2", *searched(steps)]
        found.append(Cell("search Convolution", f"row {row:02}", mixer=mixer, changes=changes))
    return found


def searched(steps: int) -> list[str]:
    return [f"task.length={SHORT}", f"training.steps={steps // 2}", "training.accumulate=1"]


def experiment_of(cell: Cell, args: argparse.Namespace) -> Any:
    """The settings of a cell."""
    from weft.arena.experiment.settings import modified, read_settings

    sizes = [f"task.{name}={getattr(args, name)}" for name in ("train", "valid", "test")]
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
    one = replace(one, training=replace(one.training, **changes))
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
    from weft.models import load
    from weft.training.scores.ranking import auc_error, gini

    began = time.perf_counter()
    last = one.task if not one.phase else replace(one.task, length=one.phase[-1].length)
    model = load(folder, args.device)
    rows = last.load("test")
    scores = margins(model, rows, args.device)
    positives = int(rows.labels.sum())
    found = gini(scores, rows.labels)
    error = 2 * auc_error((found + 1) / 2, positives, len(rows) - positives)
    np.save(args.work / "margins" / f"{cell.name}.npy", scores.astype(np.float32))
    settings = {
        "mixer": one.mixer, "length": last.length, "layers": one.model.sizes()["layers"],
        "dim": one.model.sizes()["dim"], "heads": one.model.sizes()["heads"],
        "dropout": one.model.part.stack.dropout, "batch": one.training.batch,
    }  # fmt: skip
    row = {
        "case": "transactions", "table": cell.table, "label": cell.label, "seed": cell.seed,
        "gini": found, "gini error": error, "valid gini": outcome.best_score,
        "shift rows": min(SHIFT_ROWS, len(rows)), **shifted(model, rows, one, args),
        **settings, "clients": args.train, "test clients": len(rows), "steps": outcome.steps,
        "tokens": outcome.tokens, "seconds": outcome.seconds,
        "steps per second": outcome.steps_per_second, "peak bytes": outcome.peak_bytes,
        "parameters": outcome.parameters, "jobs": args.jobs,
        "seconds of scores": time.perf_counter() - began, "attempt": args.attempt,
        "graph": one.training.graph, "compile": one.training.compile,
        **environment(args.device),
    }  # fmt: skip
    append(args.out / "rows.jsonl", [row])


def margins(model: Any, rows: Any, device: str, size: int = 512) -> np.ndarray:
    """Log-odds of default of every row: (rows,) float64."""
    import torch

    found = np.zeros(len(rows))
    order = np.argsort(-rows.lengths, kind="stable")
    with torch.no_grad():
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = rows.batch(chosen).to(device)
            scores = model(batch.x, **batch.given).double()
            found[chosen] = (scores[:, 1] - scores[:, 0]).cpu().numpy()
    return found


def shifted(model: Any, rows: Any, one: Any, args: argparse.Namespace) -> dict[str, float | None]:
    """The shift test of `weft shift`: Gini after each move, and how much scores changed."""
    from weft.arena.analysis.shift import Move, shift_test
    from weft.arena.experiment.runs import objective_of

    count = min(SHIFT_ROWS, len(rows))
    edges = range(0, count, 256)
    source = [rows.batch(np.arange(at, min(at + 256, count))) for at in edges]
    source = [batch.to(args.device) for batch in source]
    moves = [Move(by, cyclic) for by in (1, 64) for cyclic in (False, True)]
    found = shift_test(model, source, objective_of(one), moves)
    row: dict[str, float | None] = {}
    for each in found:
        row[f"gini, {each.move}"] = each.score
        row[f"change, {each.move}"] = each.change
    return row


def schedule(args: argparse.Namespace) -> None:
    """Run the cells, `--jobs` at a time, until the time is over."""
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("margins", "logs"):
        (args.work / name).mkdir(parents=True, exist_ok=True)
    make_clients(args)
    print(f"{time.monotonic() - began:.0f} s: clients are made", flush=True)
    finished = done(args)
    waiting = [cell for cell in chosen(args) if cell.name not in finished]
    running: dict[str, tuple[Cell, int, subprocess.Popen[bytes]]] = {}
    while (waiting or running) and time.monotonic() - began < args.seconds:
        late = args.seconds - (time.monotonic() - began) < args.last
        while waiting and len(running) < args.jobs and not late:
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
    """The last line of a cell's log, whose end is kept in OUT."""
    text = (args.work / "logs" / name).read_text(errors="replace").strip()
    with (args.out / "failures.txt").open("a") as file:
        file.write(f"==== {name}\n{text[-4000:]}\n")
    return (text.splitlines() or [""])[-1][-300:]


def make_clients(args: argparse.Namespace) -> None:
    """Into the cache, once."""
    from weft.arena.tasks.transactions.task import Transactions

    sizes = {name: getattr(args, name) for name in ("train", "valid", "test")}
    task = Transactions(stored=True, **sizes)
    for split in ("train", "valid", "test"):
        rows = task.load(split)
        np.save(args.work / "margins" / f"labels-{split}.npy", rows.labels.astype(np.uint8))


def started(cell: Cell, args: argparse.Namespace, attempt: int) -> subprocess.Popen[bytes]:
    """A process for the cell; later attempts do without recorded, then compiled updates."""
    own = ["--cell", cell.name, "--attempt", str(attempt)]
    command = [sys.executable, __file__, *sys.argv[1:], *own]
    threads = {name: str(args.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with (args.work / "logs" / cell.name).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **threads}
        )


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells of `--tables`, in their order."""
    every = cells(args.steps, args.seeds)
    names, parts = args.tables.split(","), args.only.split(",")
    found = [cell for cell in every if any(cell.table.startswith(name) for name in names)]
    return [cell for cell in found if any(part in cell.label for part in parts)]


def done(args: argparse.Namespace) -> set[str]:
    """The cells that have a row."""
    files = [args.out / "rows.jsonl", *args.skip]
    rows = [row for path in files if path.exists() for row in read(path)]
    return {Cell(row["table"], row["label"], row["seed"]).name for row in rows}


def gather(args: argparse.Namespace) -> None:
    """The scores of all cells so far as one file."""
    found = {path.stem: np.load(path) for path in sorted((args.work / "margins").glob("*.npy"))}
    scratch = args.out / "margins.part.npz"
    np.savez_compressed(scratch, **{k: v for k, v in found.items() if not k.startswith("search")})
    scratch.replace(args.out / "margins.npz")


def summary(folders: Iterable[Path]) -> None:
    """Tables of what was found, and differences of the main table, client by client."""
    from weft.training.scores.ranking import gini

    rows = [row for folder in folders for row in read(folder / "rows.jsonl")]
    for row in sorted(rows, key=lambda row: (row["table"], row["label"], row["seed"])):
        moves = [f"{row[f'gini, {move}']:.4f}" for move in ("none", *MOVES)]
        print(
            f"{row['table']:<20} {row['label']:<40} {row['seed']} {row['gini']:.4f} ± "
            f"{row['gini error']:.4f}  valid {row['valid gini']:.4f}  {' '.join(moves)}  "
            f"{row['seconds']:.0f} s  {row['peak bytes'] / 2**20:.0f} MiB"
        )
    held = {}
    for folder in folders:
        held |= dict(np.load(folder / "margins.npz"))
    labels = held["labels-test"]
    mean: dict[str, np.ndarray] = {}
    for label in dict.fromkeys(row["label"] for row in rows if row["table"] in ("main", "shift")):
        own = [held[name] for name in held if name.startswith(("main", "shift"))
               and Cell("main", label).name[5:-2] == name.split("-", 1)[1][:-2]]  # fmt: skip
        mean[label] = np.stack(own)
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(labels), size=len(labels)) for _ in range(200)]
    names = list(mean)
    for one, other in pairwise(names):
        gaps = [
            np.mean([gini(s[d], labels[d]) for s in mean[one]])
            - np.mean([gini(s[d], labels[d]) for s in mean[other]])
            for d in draws
        ]
        print(f"{one} − {other}: {np.mean(gaps):+.4f} ± {np.std(gaps):.4f} (bootstrap by client)")


MOVES = ("shift by 1", "shift by 64", "cyclic by 1", "cyclic by 64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, help="trainings; default: OUT.work")
    parser.add_argument("--summary", type=Path, nargs="+")
    parser.add_argument("--skip", type=Path, nargs="*", default=[], help="files of rows")
    parser.add_argument("--tables", default="main,shift,long,search")
    parser.add_argument("--only", default="", help="cells with one of these in their label")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--last", type=float, default=45, help="start nothing in the last seconds")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4000, help="of a training on 750 transactions")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=200_000, help="clients")
    parser.add_argument("--valid", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=60_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--change", nargs="*", default=[], help="of every cell's settings")
    parser.add_argument("--cell", help="train this one and end")
    parser.add_argument("--attempt", type=int, default=0)
    args = parser.parse_args()
    if args.summary:
        return summary(args.summary)
    if args.out is None:
        parser.error("--out is needed")
    args.work = args.work or args.out.with_name(f"{args.out.name}.work")
    if not args.cell:
        return schedule(args)
    return run_cell({cell.name: cell for cell in chosen(args)}[args.cell], args)


if __name__ == "__main__":
    main()

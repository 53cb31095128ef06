"""Real clients: defaults on Czech loans (Berka) and Taiwanese cards (UCI), from a file to a Gini.

    python benchmarks/cases/real_clients.py --data FOLDER --out benchmarks/results/cpu_clients.jsonl

FOLDER holds berka_partial.npz and uci_credit_default.npz. Each data set is written as one Parquet
file of events and goes the way of a user's file, task `events`, with the mechanisms of the recipe
`transactions` in small:

    berka_loans    354 accounts, 85 transactions each: does the loan that follows default? Loans
                   from 1998 on are the test: trained on earlier loans, judged on later ones
    berka_early    1,090 accounts without a loan until 20 April 1994, 40 transactions each: will
                   they take one later? Split by account
    credit         30,000 cards, 6 monthly statements each: default next month? Split by client

Each training appends a row: Gini and AUC of the test with the errors of Hanley and McNeil and of
clients drawn again, and the Gini of the best single column. A cell that has a row is left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from weft.arena.experiment.results import score_split
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment
from weft.arena.tasks.events.describe import alone
from weft.environment import environment
from weft.models import load
from weft.rows import append, read
from weft.training import train

DAY_ONE = np.datetime64("1993-01-01", "s")
MIXERS = {
    "Convolution Linformer": "linformer(compress='convolution', width={width})",
    "Longformer": "longformer(window={window}, global_first=0, global_projections=false)",
    "LSTM": "lstm",
    "Linformer (matrix)": "linformer(rank={rank})",
}
LSTM = {"trunk": {"name": "decoder"}, "frame": {"positions": "none"}, "layers": 1}
# Task, sizes of mechanisms, updates and rows of one.
DATA: dict[str, tuple[dict[str, Any], dict[str, int], int, int]] = {
    "berka_loans": (
        {"until": "loan", "label": "default", "length": 220, "out_of_time": "1998-01-01"},
        {"width": 4, "window": 33, "rank": 55},
        150,
        16,
    ),
    "berka_early": (
        {"label": "loan", "length": 140, "test_share": 0.3},
        {"width": 4, "window": 33, "rank": 35},
        200,
        32,
    ),
    "credit": (
        {"label": "default", "length": 6, "test_share": 0.2},
        {"width": 2, "window": 3, "rank": 3},
        1500,
        128,
    ),
}


def berka_loans(folder: Path) -> dict[str, Any]:
    """Transactions before each loan."""
    with np.load(folder / "berka_partial.npz") as found:
        return berka(dict(found), "loan")


def berka_early(folder: Path) -> dict[str, Any]:
    """Transactions of accounts that have no loan yet."""
    with np.load(folder / "berka_partial.npz") as file:
        found = dict(file)
    columns = berka(found, "early")
    taken = found["early_accounts"][:, 5]  # the day of the loan; -1: none
    sizes = np.diff(found["early_offsets"])
    kept = np.repeat((taken < 0) | (taken > found["early_day"].max()), sizes)
    columns["loan"] = np.repeat(np.where(taken < 0, "none", "later"), sizes)
    return {name: values[kept] for name, values in columns.items() if name != "default"}


def berka(found: dict[str, np.ndarray], part: str) -> dict[str, Any]:
    """One row for each transaction of a part of the data."""
    sizes = np.diff(found[f"{part}_offsets"])
    accounts = found[f"{part}_accounts"]
    columns: dict[str, Any] = {
        "account": np.repeat(accounts[:, 0].astype(int), sizes),
        "when": DAY_ONE + found[f"{part}_day"].astype("timedelta64[D]"),
        "amount": found[f"{part}_amount"].astype(float),
        "balance": found[f"{part}_balance"].astype(float),
        "default": np.repeat(np.isin(accounts[:, 4], (2, 4)).astype(int), sizes),
        "loan": np.repeat(DAY_ONE + accounts[:, 5].astype("timedelta64[D]"), sizes),
    }
    for name in ("type", "op", "ksym", "bank"):
        columns[name] = found[f"{name}_vocab"][found[f"{part}_{name}"]]
    return columns


def credit(folder: Path) -> dict[str, Any]:
    """Six statements of each card, the oldest first."""
    with np.load(folder / "uci_credit_default.npz") as found:
        count = len(found["label"])
        months = np.arange("2005-04", "2005-10", dtype="datetime64[M]").astype("datetime64[s]")
        static = np.repeat(found["static"], 6, axis=0)
        return {
            "account": np.repeat(np.arange(count), 6),
            "when": np.tile(months, count),
            "status": found["pay_status"].ravel().astype(str),
            "bill": found["bill"].ravel().astype(float),
            "paid": found["paid"].ravel().astype(float),
            "limit": static[:, 0].astype(float),
            "sex": static[:, 1].astype(str),
            "education": static[:, 2].astype(str),
            "marriage": static[:, 3].astype(str),
            "age": static[:, 4].astype(float),
            "default": np.repeat(found["label"].astype(int), 6),
        }


READERS = {"berka_loans": berka_loans, "berka_early": berka_early, "credit": credit}


def settings(data: str, file: Path, label: str, seed: int) -> dict[str, Any]:
    """The tables of an experiment; the seed draws validation, weights and batches."""
    task, sizes, steps, batch = DATA[data]
    model: dict[str, Any] = {"dim": 32, "heads": 4, "layers": 2, "expansion": 4, "pool": "mean"}
    model |= {"stack": {"dropout": 0.1}, "frame": {"positions": "rope"}}
    model |= {"embedding": {"positions": "none"}}
    model |= LSTM if label == "LSTM" else {}
    return {
        "task": {"name": "events", "data": str(file), "id": "account", "time": "when",
                 "valid_share": 0.15, **task, "seed": seed},
        "objective": {"name": "classify", "metric": "gini"},
        "mixer": MIXERS[label].format(**sizes),
        "model": model,
        "training": {"steps": steps, "batch": batch, "lr": 2e-3, "warmup": steps // 10,
                     "seed": seed, "device": "cpu", "evaluate_every": max(1, steps // 10)},
    }  # fmt: skip


def trained(data: str, file: Path, label: str, seed: int) -> dict[str, Any]:
    """Train, score, and say all of it in a row."""
    one = experiment(settings(data, file, label, seed))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(run_of(one), Path(folder))
        found = score_split(one, load(Path(folder)), "test")[1]
    columns = alone(one.task)
    return {
        "case": "clients", "data": data, "label": label, "seed": seed,
        "mixer": one.mixer,
        **{name: found[name] for name in ("gini", "gini error", "gini bootstrap error", "AUC")},
        "valid gini": outcome.best_score, "best column": str(columns[0]) if columns else "",
        **{f"{name} clients": len(one.task.load(name)) for name in ("train", "valid", "test")},
        "defaults of test": int(one.task.load("test").labels.sum()),
        "steps": outcome.steps, "parameters": outcome.parameters, "source": one.task.source,
        "seconds": time.perf_counter() - began, **environment("cpu"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Real clients: train, score, append rows.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the .npz files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="data sets whose names hold this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a folder that keeps the files of events")
    args = parser.parse_args()
    import pyarrow
    from pyarrow import parquet

    seen = read(args.out) if args.out.exists() else []
    done = {(row["data"], row["label"], row["seed"]) for row in seen}
    with tempfile.TemporaryDirectory() as folder:
        for data in (name for name in DATA if args.only in name):
            file = (args.work or Path(folder)) / f"{data}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                parquet.write_table(pyarrow.table(READERS[data](args.data)), file)
            for seed in range(args.seeds):
                for label in MIXERS:
                    if (data, label, seed) in done:
                        continue
                    row = trained(data, file, label, seed)
                    append(args.out, [row])
                    shown = ("data", "label", "seed", "gini", "gini error", "AUC", "seconds")
                    print(json.dumps({name: row[name] for name in shown}), flush=True)


if __name__ == "__main__":
    main()

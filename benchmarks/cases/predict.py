"""`weft predict` on many documents: documents per second, and the most memory the process takes.

    python benchmarks/cases/predict.py --documents 100000 --out benchmarks/results/cpu_predict.jsonl

The model is untrained: its speed is that of a trained one. Documents are words drawn at random, of
`--bytes` bytes each, in a CSV file that is written first; predictions go to another CSV file.
With `--seconds` the process is ended after that long; `answered` then says how far it came.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import weft
from weft.environment import environment
from weft.models.usage.record import Usage
from weft.rows import append

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "ck", "rs")]


def write_documents(path: Path, count: int, size: int) -> None:
    """A CSV file with the columns number and text."""
    draw, words = np.random.default_rng(0), np.array(WORDS)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "text"])
        for number in range(count):
            text = " ".join(words[draw.integers(0, len(words), size // 3)])
            writer.writerow([number, text[:size]])


def write_model(folder: Path, args: argparse.Namespace) -> None:
    """An untrained classifier of byte texts that knows its labels."""
    frame = weft.Frame(dim=args.dim, heads=args.heads, length=args.bytes)
    stack = weft.Stack(frame=frame, order="sf" * args.layers, mixer=args.mixer)
    trunk = weft.Encoder(embedding=weft.Embedding(vocab=256), stack=stack)
    model = weft.Classifier(trunk=trunk, classes=2).build()
    columns = {"text": "text", "label": "label"}
    model.usage = Usage(
        kind="classify", labels=("no", "yes"), tokens="bytes", length=args.bytes, columns=columns
    )
    weft.save(model, folder)


def watched(command: list[str], limit: float | None) -> dict[str, object]:
    """The most resident memory of a process, how long it ran, and whether the limit ended it."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    timer = threading.Timer(limit or threading.TIMEOUT_MAX, os.kill, (process.pid, signal.SIGTERM))
    timer.daemon = True
    timer.start()
    _, status, used = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    stopped = process.returncode == -signal.SIGTERM
    if process.returncode and not stopped:
        raise SystemExit(f"weft predict ended with status {process.returncode}")
    return {
        "stopped": stopped,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_bytes": used.ru_maxrss * 1024,
    }


def measured(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    """One row."""
    texts, out = folder / "documents.csv", folder / "predictions.csv"
    write_documents(texts, args.documents, args.bytes)
    write_model(folder / "model", args)
    call = [sys.executable, "-m", "weft", "predict", str(folder / "model"), str(texts)]
    found = watched([*call, "--out", str(out), "--device", "cpu"], args.seconds)
    with out.open(newline="", encoding="utf-8") as file:
        answered = sum(bool(row.get("prediction")) for row in csv.DictReader(file))
    return {
        "bench": "predict",
        "documents": args.documents,
        "answered": answered,
        "bytes": args.bytes,
        "mixer": args.mixer,
        "layers": args.layers,
        "dim": args.dim,
        "heads": args.heads,
        "documents_per_second": round(answered / float(str(found["seconds"])), 1),
        **found,
        **environment("cpu"),
    }


def main() -> None:
    """Measure, print, and append the row."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--documents", type=int, default=100_000)
    options.add_argument("--bytes", type=int, default=2000)
    options.add_argument("--mixer", default="sliding_window(window=17)")
    options.add_argument("--layers", type=int, default=1)
    options.add_argument("--dim", type=int, default=8)
    options.add_argument("--heads", type=int, default=1)
    options.add_argument("--seconds", type=float, help="Stop after this long; default: never.")
    options.add_argument("--out", type=Path)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measured(Path(folder), args)
    print(row)
    if args.out is not None:
        append(args.out, [row])


if __name__ == "__main__":
    main()

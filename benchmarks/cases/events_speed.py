"""Reading and encoding events: events per second and per CPU second, and the most memory it takes.

    python benchmarks/cases/events_speed.py --events 2000000 20000000 \\
        --out benchmarks/results/cpu_events.jsonl

The file holds made-up clients of a bank (10 categories, 10 numbers, about 700 events each), all
events of a client together or, with `--mixed`, all in order of time, so that every client's are
scattered. Each size is read by a process of its own, imports included; threads of pyarrow and numpy
are as many as it may have: run it under `taskset -c 0,1` for two cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from weft.arena.tasks.transactions.task import write_parquet
from weft.environment import environment
from weft.rows import append

READ = """
import sys, time
from pathlib import Path
began = time.perf_counter()
from weft.events.columns import EventColumns
from weft.events.store import build_store
ready = time.perf_counter()
columns = EventColumns(id="client", time="time", label="default")
store = build_store([Path(sys.argv[1])], columns, Path(sys.argv[2]))
print(len(store.times), len(store), time.perf_counter() - ready, ready - began)
"""


def write_file(path: Path, events: int, mixed: bool) -> None:
    """Parquet, or CSV by its name."""
    import pyarrow
    from pyarrow import csv, parquet

    made = path.with_name(f"{path.stem}-made.parquet")
    write_parquet(str(made), clients=max(1, events // 700))
    if mixed:
        table = parquet.read_table(made)
        order = np.argsort(table["time"].to_numpy(), kind="stable")
        parquet.write_table(table.take(pyarrow.array(order)), made)
    if path.suffix == ".csv":
        with parquet.ParquetFile(made) as source, csv.CSVWriter(path, source.schema_arrow) as out:
            for batch in source.iter_batches():
                out.write_batch(batch)
        made.unlink()
    else:
        made.rename(path)


def write_apart(path: Path, events: int, mixed: bool) -> None:
    """In a process of its own: a child's peak of memory starts at what its parent once held."""
    process = get_context("spawn").Process(target=write_file, args=(path, events, mixed))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"writing {path.name} ended with status {process.exitcode}")


def measured(path: Path, folder: Path) -> dict[str, object]:
    """Read the file in a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", READ, str(path), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"reading {path.name} ended with status {status}")
    events, clients, seconds, imports = text.split()
    cpu = used.ru_utime + used.ru_stime
    return {
        "events": int(events),
        "clients": int(clients),
        "file_bytes": path.stat().st_size,
        "seconds": round(time.perf_counter() - began, 2),
        "seconds_of_imports": round(float(imports), 2),
        "cpu_seconds": round(cpu, 2),
        "events_per_second": round(int(events) / float(seconds)),
        "events_per_cpu_second": round(int(events) / cpu),
        "peak_bytes": used.ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, nargs="+", default=[2_000_000])
    parser.add_argument("--kind", choices=("parquet", "csv"), default="parquet")
    parser.add_argument("--mixed", action="store_true", help="in order of time, clients scattered")
    parser.add_argument("--files", type=Path, help="a folder that keeps the files for later calls")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    for events in args.events:
        with tempfile.TemporaryDirectory() as name:
            label = f"{events}-mixed" if args.mixed else f"{events}"
            path = (args.files or Path(name)) / f"events-{label}.{args.kind}"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_apart(path, events, args.mixed)
            load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
            found = measured(path, Path(name) / "store")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        row = {"case": "events", "kind": args.kind, "mixed": args.mixed, "cores": cores, **found}
        row["load"] = load  # of the machine before, by others too
        print(row, flush=True)
        if args.out:
            append(args.out, [{**row, **environment("cpu")}])


if __name__ == "__main__":
    main()

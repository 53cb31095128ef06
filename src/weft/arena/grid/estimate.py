"""`python -m weft.arena.grid.estimate RUN`: the pace of a grid's contenders, before any training.

A process of its own, so that a contender for which the memory is too small takes no other with it.
`RUN/pace.jsonl` gets a line for each contender and length: what `Pace` holds, or a reason. It is
kept, so that a comparison that goes on later has the plan that it began with.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.arena.experiment.pace import PROBE_SECONDS, Pace, pace_of, read_pace
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment, located
from weft.arena.experiment.time_plan import TimePlan, said, time_plan
from weft.arena.grid.cell import ending_with_parent, limit_memory
from weft.arena.grid.grid import Cell, Grid
from weft.arena.grid.measure import reason_of
from weft.arena.grid.process import process_environment
from weft.files import read_json, write_json
from weft.kernels.planner.context import forced
from weft.plugins import load_plugins
from weft.rows import append, read

PACE, JOB = "pace.jsonl", "estimate.json"
PATIENCE = 4.0  # times the limit of a probe, and a minute: after this a probe is killed
_PAUSE = 0.05

Key = tuple[str, int]


def key_of(cell: Cell) -> Key:
    """Seeds of a contender take the same time."""
    return cell.label, cell.length


def measured_paces(
    folder: Path, grid: Grid, cells: Sequence[Cell], *, jobs: int, memory_limit: int | None
) -> dict[Key, Pace]:
    """The pace of the contenders of these cells; one without a pace is left out.

    The modifications of an ablation are taken to be as fast as their base.
    """
    ones = {key_of(cell): cell for cell in cells if not cell.experiment.phase}
    if grid.base is not None:
        ones = {key: cell for key, cell in ones.items() if cell.label == grid.base}
    while missing := [key for key in ones if key not in _lines(folder)]:
        before = len(_lines(folder))
        entries = [
            {
                "label": key[0],
                "length": key[1],
                "experiment": located(ones[key].experiment).tables(),
                "spans": grid.span_samples,
            }
            for key in missing
        ]
        job = {"plugins": list(grid.plugins), "memory_limit": memory_limit, "asked": time.time()}
        write_json(folder / JOB, {**job, "entries": entries})
        _probe(folder, jobs, len(missing))
        if len(_lines(folder)) == before:
            _add(folder, missing[0], {"reason": "the probe ended without a word"})
    found = {key: _pace(line) for key, line in _lines(folder).items()}
    return {key: pace for key, pace in found.items() if pace is not None}


def _probe(folder: Path, jobs: int, count: int) -> None:
    with (folder / "estimate.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=process_environment(jobs),
            start_new_session=True,
        )
    until = time.monotonic() + 60 + PATIENCE * PROBE_SECONDS * count
    try:
        while process.poll() is None and time.monotonic() < until:
            time.sleep(_PAUSE)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _lines(folder: Path) -> dict[Key, dict[str, Any]]:
    path = folder / PACE
    rows = read(path) if path.exists() else []
    return {(row["label"], row["length"]): row for row in rows}


def _add(folder: Path, key: Key, values: dict[str, Any]) -> None:
    append(folder / PACE, [{"label": key[0], "length": key[1], **values}])


def _pace(line: dict[str, Any]) -> Pace | None:
    if "reason" in line:
        return None
    return read_pace(line)


def plans_of(
    grid: Grid, cells: Sequence[Cell], paces: dict[Key, Pace]
) -> dict[tuple[str, int, int], TimePlan]:
    """A plan for each cell; a contender whose pace is unknown is taken to be the slowest."""
    if not paces:
        return {}
    found = {}
    for cell in cells:
        if cell.experiment.phase:
            continue
        every = [pace for (_, length), pace in paces.items() if length == cell.length]
        slowest = max(every or paces.values(), key=lambda pace: pace.update)
        own = paces.get(key_of(cell), slowest)
        spans = grid.span_samples > 0
        found[cell.key] = time_plan(cell.experiment.training, own, every, spans=spans)
    return found


def estimate(
    grid: Grid, waiting: Sequence[Cell], paces: dict[Key, Pace], jobs: int = 1
) -> list[str]:
    """What is to come, in words; nothing where nothing is known."""
    plans = plans_of(grid, waiting, paces)
    if not plans:
        return []
    kinds = {key_of(cell) for cell in waiting}
    what, count = ("mechanism" if grid.base is None else "model"), len(plans)
    if len(kinds) < count or len({length for _, length in kinds}) > 1:
        what = "training"
    return said(
        list(plans.values()), list(paces.values()), f"for {count} {what}{'s' * (count != 1)}", jobs
    )


def main(folder: Path) -> int:
    """Measure all contenders of the job that are still without a line."""
    job = read_json(folder / JOB)
    limit_memory(job["memory_limit"])
    load_plugins(job["plugins"])
    start, load = time.time() - job["asked"], 0.0
    for entry in job["entries"]:
        key = entry["label"], entry["length"]
        try:
            one = experiment(entry["experiment"])
            began = time.perf_counter()
            run = run_of(one)
            rows = {split: len(one.task.load(split)) for split in ("train", "test")}
            load = max(load, time.perf_counter() - began)  # later ones find the data in memory
            with forced("dense") if one.unfused else nullcontext():
                pace = pace_of(one, run)
        except Exception as error:
            _add(folder, key, {"reason": reason_of(error)})
            continue
        pace = replace(pace, start=start + load, rows={**pace.rows, **rows})
        _add(folder, key, pace.as_row())
    return 0


if __name__ == "__main__":
    with ending_with_parent():
        sys.exit(main(Path(sys.argv[1])))

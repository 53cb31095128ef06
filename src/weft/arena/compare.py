"""Compare: run the cells of a grid, each in a process of its own, and gather their rows.

    RUN/grid.json        what is compared; the same folder with other settings is refused
    RUN/rows.jsonl       a row for each cell that ended, well or not
    RUN/baselines.json   scores of trivial rules
    RUN/cells/NAME/      the training folder of a cell, its log.txt, job.json and result.json
    RUN/spans.jsonl      required attention spans by layer and head
    RUN/pictures/        the patterns

A cell that runs out of memory, raises or hangs becomes a row that says so, and the grid goes on.
Stopped or killed, the same call continues: no cell is run twice, and one that was training goes on
from its checkpoint.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from weft.arena.files import alone, read_json, replace_file
from weft.arena.grid import Cell, Grid, sized, write_grid
from weft.arena.measure import row_of, with_targets
from weft.arena.pictures import draw_patterns
from weft.arena.process import CellProcess
from weft.arena.runs import model_of
from weft.errors import WeftError
from weft.rows import Row, append, read
from weft.training.record import write_json

RETRIED = ("out of memory", "failed", "timed out")
_PAUSE = 0.1  # seconds between two looks at the cells


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a grid is run; none of it changes what is measured, so a rerun may choose anew."""

    jobs: int = 1  # cells at the same time
    cell_minutes: float | None = None  # a cell that takes longer is ended
    memory_limit: int | None = None  # bytes that a cell's process may grow by
    retry: bool = False  # run cells that failed again

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise WeftError(f"jobs counts cells at the same time, 1 or more; got {self.jobs}")


class Listener:
    """Told how a grid goes; does nothing."""

    def start(self, cells: Sequence[Cell], done: Sequence[Row]) -> None:
        """The grid begins with these cells; those rows are there already."""

    def cell(self, cell: Cell, seconds: float, latest: Row) -> None:
        """A cell is running; `latest` is the last row of its metrics."""

    def row(self, cell: Cell, row: Row) -> None:
        """A cell ended."""


@dataclass(frozen=True)
class Comparison:
    """What came of a call."""

    folder: Path
    rows: list[Row]
    missing: int  # cells without a row, because the grid was stopped

    @property
    def finished(self) -> bool:
        """Whether every cell has a row."""
        return not self.missing


def compare(
    grid: Grid,
    folder: str | Path,
    options: Options | None = None,
    listener: Listener | None = None,
    *,
    command: str = "",
) -> Comparison:
    """Run what is left of a grid; SIGINT and SIGTERM let the running cells save, and end it."""
    folder, options, listener = Path(folder), options or Options(), listener or Listener()
    cells = grid.cells()
    write_grid(folder, grid, command)
    with alone(folder / ".lock", wait=False) as free:
        if not free:
            raise WeftError(f"another comparison is running in {folder}; wait until it ends")
        if options.retry:
            _forget_failures(folder)
        rows = _known_rows(folder, cells)
        _prepare(folder, grid, cells)
        listener.start(cells, rows)
        done = {_key(row) for row in rows}
        waiting = [cell for cell in cells if cell.key not in done]
        rows += _Running(grid, folder, options, listener).run(waiting)
        rows = _settled(folder, grid)
    return Comparison(folder, rows, len(cells) - len(rows))


class _Running:
    """The cells at work."""

    def __init__(self, grid: Grid, folder: Path, options: Options, listener: Listener) -> None:
        self.grid, self.folder, self.options, self.listener = grid, folder, options, listener
        self.stopping = False
        self.at_work: list[CellProcess] = []

    def run(self, waiting: list[Cell]) -> list[Row]:
        """Run cells until none is left, or until asked to stop."""
        rows, waiting = [], list(waiting)
        with self._signals():
            try:
                while self.at_work or (waiting and not self.stopping):
                    while waiting and not self.stopping and len(self.at_work) < self.options.jobs:
                        self.at_work.append(self._start(waiting.pop(0)))
                    time.sleep(_PAUSE)
                    rows += filter(None, [self._look(process) for process in list(self.at_work)])
            finally:
                for process in self.at_work:
                    process.kill()
        return rows

    def _start(self, cell: Cell) -> CellProcess:
        job = {
            "experiment": cell.experiment.tables(),
            "dense": self.grid.dense_like(cell).tables(),
            "plugins": list(self.grid.plugins),
            "span_samples": self.grid.span_samples,
            "memory_limit": self.options.memory_limit,
        }
        limit = self.options.cell_minutes
        return CellProcess(
            cell, self.folder, job, jobs=self.options.jobs, seconds=limit and 60 * limit
        )

    def _look(self, process: CellProcess) -> Row | None:
        """The row of a cell that has ended; None while it runs, or if it was stopped."""
        if not process.ended():
            self.listener.cell(process.cell, process.elapsed, process.latest())
            return None
        self.at_work.remove(process)
        result = process.result(stopped=self.stopping)
        if result is None:
            return None
        row = row_of(process.cell, **result)
        append(self.folder / "rows.jsonl", [row])
        self.listener.row(process.cell, row)
        return row

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Hand the first signal on to the cells, which save; the second one kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, frame: Any) -> None:
            for process in self.at_work:
                process.kill() if self.stopping else process.send(signal.SIGINT)
            self.stopping = True

        before = {n: signal.signal(n, asked) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _prepare(folder: Path, grid: Grid, cells: Sequence[Cell]) -> None:
    """Load the data once, so that mistakes show early; write baselines and pictures."""
    if not (folder / "baselines.json").exists():
        write_json(folder / "baselines.json", _baselines(cells))
    if not (folder / "pictures" / "pictures.json").exists():
        length = max(cell.length for cell in cells)
        shown = [c for c in cells if c.length == length and not c.experiment.unfused]
        trunks = {cell.label: partial(_trunk, cell) for cell in shown}
        draw_patterns(folder / "pictures", trunks, length)


def _trunk(cell: Cell) -> Any:
    return model_of(cell.experiment).trunk


def _baselines(cells: Sequence[Cell]) -> dict[str, float]:
    specs = {cell.length: cell.experiment.task for cell in cells}
    found = {length: sized(spec, None).baselines() for length, spec in specs.items()}
    if len(found) == 1:
        return next(iter(found.values()))
    return {
        f"{name} ({length:,} tokens)": value
        for length, own in found.items()
        for name, value in own.items()
    }


def _known_rows(folder: Path, cells: Sequence[Cell]) -> list[Row]:
    """Rows of before, and those of cells that ended while no one was there to write them."""
    path = folder / "rows.jsonl"
    rows = read(path) if path.exists() else []
    known = {_key(row) for row in rows}
    for cell in cells:
        result = read_json(folder / "cells" / cell.name / "result.json")
        if result is not None and cell.key not in known:
            row = row_of(cell, **result)
            append(path, [row])
            rows.append(row)
    return rows


def _forget_failures(folder: Path) -> None:
    """Remove the rows and results of cells that failed."""
    path = folder / "rows.jsonl"
    rows = read(path) if path.exists() else []
    for row in rows:
        if row["status"] in RETRIED:
            (folder / row["cell"] / "result.json").unlink(missing_ok=True)
    _rewrite(path, [row for row in rows if row["status"] not in RETRIED])


def _settled(folder: Path, grid: Grid) -> list[Row]:
    """What needs all rows: times to accuracy, and the spans of all cells in one file."""
    path = folder / "rows.jsonl"
    rows = with_targets(read(path) if path.exists() else [], folder, grid.target)
    _rewrite(path, rows)
    spans = []
    for row in rows:
        own = folder / row["cell"] / "spans.jsonl"
        place = {key: row[key] for key in ("label", "mixer", "length", "seed")}
        if row["status"] == "done" and own.exists():
            spans += [{**place, **span} for span in read(own)]
    if spans:
        _rewrite(folder / "spans.jsonl", spans)
    return rows


def _rewrite(path: Path, rows: Sequence[Row]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    replace_file(path, text.encode())


def _key(row: Row) -> tuple[str, int, int]:
    return row["label"], row["length"], row["seed"]

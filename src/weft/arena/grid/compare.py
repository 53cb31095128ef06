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

from weft.arena.experiment.runs import baselines_of, model_of
from weft.arena.experiment.settings import located
from weft.arena.experiment.time_plan import TimePlan
from weft.arena.grid.engine import ENGINES, CellEngine, RunningCell, engine_of
from weft.arena.grid.estimate import estimate, measured_paces, plans_of
from weft.arena.grid.grid import Cell, Grid, write_grid
from weft.arena.grid.measure import row_of, with_targets
from weft.arena.grid.pictures import draw_patterns
from weft.config import write
from weft.errors import WeftError
from weft.files import locked, read_json, remove_leftovers, write_bytes, write_json
from weft.models import EncoderDecoder
from weft.rows import Row, append, read

RETRIED = ("out of memory", "failed", "timed out")
_PAUSE = 0.1  # seconds between two looks at the cells


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """How a grid is run; none of it changes what is measured, so a rerun may choose differently."""

    jobs: int = 1  # cells at the same time
    cell_minutes: float | None = None  # a cell that takes longer is ended
    memory_limit: int | None = None  # bytes that a cell's process may grow by
    retry: bool = False  # run cells that failed again
    together: bool = False  # the seeds of a contender in one process: one start-up for all
    engine: str = "pool"  # or "ray" (arena/grid/engine.py)
    address: str | None = None  # ray: HOST:PORT of a cluster; None: one on this machine
    cell_cpus: float = 1.0  # ray: cores that a cell needs
    cell_gpus: float | None = None  # ray: GPUs; None: one where the cluster has any
    retries: int = 3  # ray: how often a cell is started again when its worker or node dies
    estimate: bool = False  # also without a limit of minutes, say before how long it takes

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise WeftError(f"jobs counts cells at the same time, 1 or more; got {self.jobs}")
        if self.engine not in ENGINES:
            raise WeftError(f"cells run on {' or '.join(ENGINES)}; got engine={self.engine!r}")
        if self.address is not None and self.engine != "ray":
            raise WeftError(
                f"address is that of a Ray cluster; got address={self.address!r} with "
                f"engine={self.engine!r}: add --engine ray, or leave --address out"
            )
        if self.cell_cpus <= 0 or (self.cell_gpus or 0) < 0 or self.retries < 0:
            raise WeftError(
                "cell_cpus is positive, cell_gpus and retries are 0 or more; got "
                f"cell_cpus={self.cell_cpus}, cell_gpus={self.cell_gpus}, retries={self.retries}"
            )


class Listener:
    """Told how a grid goes; does nothing."""

    def start(self, cells: Sequence[Cell], done: Sequence[Row]) -> None:
        """The grid begins with these cells; those rows are there already."""

    def note(self, text: str) -> None:
        """What a person should know, e.g. how long it will take."""

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
    options: GridOptions | None = None,
    listener: Listener | None = None,
    *,
    command: str = "",
) -> Comparison:
    """Run what is left of a grid; SIGINT and SIGTERM let the running cells save, and end it."""
    folder, options, listener = Path(folder), options or GridOptions(), listener or Listener()
    cells = grid.cells()
    write_grid(folder, grid, command)
    with locked(folder / ".lock", wait=False) as free:
        if not free:
            raise WeftError(f"another comparison is running in {folder}; wait until it ends")
        remove_leftovers(folder)
        if options.retry:
            _forget_failures(folder)
        rows = _known_rows(folder, cells)
        _prepare(folder, grid, cells)
        done = {_key(row) for row in rows}
        waiting = [cell for cell in cells if cell.key not in done]
        try:
            plans = _plans(folder, grid, waiting, options, listener)
        except KeyboardInterrupt:
            return Comparison(folder, rows, len(waiting))
        listener.start(cells, rows)
        if waiting:
            with engine_of(options) as engine:
                rows += _Running(grid, folder, options, listener, engine, plans).run(waiting)
        rows = _settled(folder, grid)
    return Comparison(folder, rows, len(cells) - len(rows))


class _Running:
    """The cells at work."""

    def __init__(
        self,
        grid: Grid,
        folder: Path,
        options: GridOptions,
        listener: Listener,
        engine: CellEngine,
        plans: dict[tuple[str, int, int], TimePlan],
    ) -> None:
        self.grid, self.folder, self.options, self.listener = grid, folder, options, listener
        self.engine, self.plans = engine, plans
        self.stopping = False
        self.at_work: list[RunningCell] = []

    def run(self, waiting: list[Cell]) -> list[Row]:
        """Run cells until none is left, or until asked to stop."""
        rows: list[Row] = []
        together = self.options.together and self.engine.groups
        self.waiting = _grouped(waiting) if together else [[c] for c in waiting]
        with self._signals():
            try:
                while self.at_work or (self.waiting and not self.stopping):
                    while self._may_start():
                        self.at_work.append(self._start(self.waiting.pop(0)))
                    time.sleep(_PAUSE)
                    for process in list(self.at_work):
                        rows += self._look(process)
            finally:
                for process in self.at_work:
                    process.kill()
        return rows

    def _may_start(self) -> bool:
        room = self.engine.has_room(len(self.at_work))
        return bool(self.waiting) and room and not self.stopping

    def _start(self, cells: Sequence[Cell]) -> RunningCell:
        limit = self.options.cell_minutes
        jobs = [(cell, self._job(cell)) for cell in cells]
        return self.engine.start(self.folder, jobs, limit and 60 * limit)

    def _job(self, cell: Cell) -> dict[str, Any]:
        return {
            "experiment": located(cell.experiment).tables(),
            "dense": located(self.grid.dense_like(cell)).tables(),
            "plan": write(self.plans[cell.key]) if cell.key in self.plans else None,
            "plugins": list(self.grid.plugins),
            "span_samples": self.grid.span_samples,
            "memory_limit": self.options.memory_limit,
        }

    def _look(self, process: RunningCell) -> list[Row]:
        """The rows of cells that have ended: none while they run, or if they were stopped."""
        ended = process.ended()
        rows = [self._keep(cell, result) for cell, result in process.passed()]
        if not ended:
            self.listener.cell(process.cell, process.elapsed, process.latest())
            return rows
        self.at_work.remove(process)
        result = process.result(stopped=self.stopping)
        if process.rest:  # those behind a cell that took the process with it
            self.waiting.insert(0, process.rest)
        return rows if result is None else [*rows, self._keep(process.cell, result)]

    def _keep(self, cell: Cell, result: dict[str, Any]) -> Row:
        row = row_of(cell, **result)
        append(self.folder / "rows.jsonl", [row])
        self.listener.row(cell, row)
        return row

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Hand the first signal on to the cells, which save; the second one kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, frame: Any) -> None:
            for process in self.at_work:
                process.kill() if self.stopping else process.stop()
            self.stopping = True

        before = {n: signal.signal(n, asked) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _plans(
    folder: Path, grid: Grid, waiting: list[Cell], options: GridOptions, listener: Listener
) -> dict[tuple[str, int, int], TimePlan]:
    """What fits into the minutes of each cell, and an estimate of the whole, said at once."""
    limited = any(cell.experiment.training.minutes for cell in waiting)
    if not waiting or not (limited or options.estimate):
        return {}
    given = {"jobs": options.jobs, "memory_limit": options.memory_limit}
    paces = measured_paces(folder, grid, waiting, **given)
    for line in estimate(grid, waiting, paces, options.jobs):
        listener.note(line)
    return plans_of(grid, waiting, paces) if limited else {}


def _grouped(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The seeds of one contender and length are adjacent, in the order of the first."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.label, cell.length), []).append(cell)
    return list(groups.values())


def _prepare(folder: Path, grid: Grid, cells: Sequence[Cell]) -> None:
    """Load the data once, so that mistakes show early; write baselines and pictures."""
    if not (folder / "baselines.json").exists():
        write_json(folder / "baselines.json", _baselines(cells))
    if grid.base is None and not (folder / "pictures" / "pictures.json").exists():
        length = max(cell.length for cell in cells)
        shown = [c for c in cells if c.length == length and not c.experiment.unfused]
        trunks = {cell.label: partial(_trunk, cell) for cell in shown}
        draw_patterns(folder / "pictures", trunks, length)


def _trunk(cell: Cell) -> Any:
    trunk = model_of(cell.experiment).trunk
    return trunk.encoder if isinstance(trunk, EncoderDecoder) else trunk


def _baselines(cells: Sequence[Cell]) -> dict[str, float]:
    ones = {cell.length: cell.experiment for cell in cells}
    found = {length: baselines_of(one) for length, one in ones.items()}
    if len(found) == 1:
        return next(iter(found.values()))
    return {
        f"{name} ({length:,} tokens)": value
        for length, own in found.items()
        for name, value in own.items()
    }


def _known_rows(folder: Path, cells: Sequence[Cell]) -> list[Row]:
    """The rows written before, and those of cells that ended while no grid was running."""
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
    rules = read_json(folder / "baselines.json") or {}
    rows = with_targets(read(path) if path.exists() else [], folder, grid.target, rules)
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
    write_bytes(path, text.encode())


def _key(row: Row) -> tuple[str, int, int]:
    return row["label"], row["length"], row["seed"]

"""Where the cells of a grid run: an engine starts them, and gives what `compare` watches.

pool    processes of this machine, `jobs` at the same time: the default, needs nothing
ray     tasks of a Ray cluster (arena/grid/ray_engine.py), as many as it has room for
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from weft.arena.grid.grid import Cell
from weft.arena.grid.process import CellProcess
from weft.errors import WeftError
from weft.rows import Row

ENGINES = ("pool", "ray")


class RunningCell(Protocol):
    """A cell at work, and those that wait behind it in the same process."""

    cell: Cell
    rest: list[Cell]

    @property
    def elapsed(self) -> float:
        """Seconds since it was begun."""
        ...

    def ended(self) -> bool:
        """Whether it is over."""
        ...

    def passed(self) -> list[tuple[Cell, dict[str, Any]]]:
        """Cells before it in the same process that left a result since the last look."""
        ...

    def latest(self) -> Row:
        """The last row of its metrics, where it can be seen from here."""
        ...

    def result(self, *, stopped: bool) -> dict[str, Any] | None:
        """Status, reason and measures; None if it has to go on another time."""
        ...

    def stop(self) -> None:
        """Ask it to save and end."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


class CellEngine(AbstractContextManager["CellEngine"], Protocol):
    """Starts cells."""

    groups: bool  # whether cells may share a process

    def has_room(self, at_work: int) -> bool:
        """Whether one more cell may start."""
        ...

    def start(
        self, folder: Path, cells: Sequence[tuple[Cell, dict[str, Any]]], seconds: float | None
    ) -> RunningCell:
        """Begin with the first of these cells (and their jobs), which may take `seconds`."""
        ...


class Pool(CellEngine):
    """Processes of this machine."""

    groups = True

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def __exit__(self, *error: object) -> None:
        """Processes end with their cells."""

    def has_room(self, at_work: int) -> bool:
        return at_work < self.jobs

    def start(
        self, folder: Path, cells: Sequence[tuple[Cell, dict[str, Any]]], seconds: float | None
    ) -> RunningCell:
        (first, job), *behind = cells
        given = {"behind": behind} if behind else {}
        return CellProcess(first, folder, job, jobs=self.jobs, seconds=seconds, **given)


def engine_of(options: Any) -> CellEngine:
    """The engine that the options of a grid name."""
    if options.engine == "pool":
        return Pool(options.jobs)
    if options.engine == "ray":
        from weft.arena.grid.ray_engine import RayEngine

        return RayEngine(options)
    raise WeftError(f"cells run on one of {', '.join(ENGINES)}; got engine={options.engine!r}")

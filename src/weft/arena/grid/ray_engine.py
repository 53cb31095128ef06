"""Cells as tasks of a Ray cluster.

A task runs its cell as the pool does, in a process of its own (`CellProcess`), on the node that Ray
chooses. Where the node sees the comparison's folder (one machine, a shared file system) the cell
trains there, so a task that is started again goes on from its checkpoint; elsewhere it trains in a
temporary folder, whose files come back to the driver with the result.

A worker or a node that dies costs a retry: Ray starts the task again, `retries` times. Ctrl-C
cancels the tasks, whose cells save.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.arena.grid.engine import CellEngine
from weft.arena.grid.grid import Cell
from weft.arena.grid.process import CellProcess, last_row
from weft.errors import WeftError
from weft.files import write_bytes, write_json
from weft.rows import Row

_PAUSE = 0.1  # seconds between two looks at a cell's process
_ANSWER = 5.0  # seconds that a cluster may take to answer
_MARK = ".ray"  # of the driver's folder: a node that reads the same word in it sees the folder


class RayEngine(CellEngine):
    """A cluster that runs, or one of this machine alone."""

    groups = False

    def __init__(self, options: Any) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as cause:
            raise WeftError(
                "engine='ray' needs Ray, which is not installed: pip install ray; or leave "
                "--engine out to run cells in processes of this machine"
            ) from cause
        self.ray, self.options = ray, options
        if options.address is not None:
            _check_answers(options.address)
        source = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        given: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False}
        if options.address is not None:
            given = {"address": options.address, "log_to_driver": False}
        self.began = not ray.is_initialized()
        if not self.began:
            return
        try:
            ray.init(**given, runtime_env={"env_vars": {"PYTHONPATH": path}})
        except Exception as cause:  # Ray raises plain ones, of a node that does not start in time
            raise _unreachable(options.address, cause) from cause

    def __exit__(self, *error: object) -> None:
        """Leave the cluster; one that was started here ends."""
        if self.began:
            self.ray.shutdown()

    def has_room(self, at_work: int) -> bool:
        """The cluster queues what it has no room for."""
        return True

    def start(
        self, folder: Path, cells: Sequence[tuple[Cell, dict[str, Any]]], seconds: float | None
    ) -> RayCell:
        ((cell, job),) = cells
        gpus = self.options.cell_gpus
        if gpus is None:
            gpus = 0.0 if cell.experiment.training.device == "cpu" else self._spare_gpu()
        task = self.ray.remote(_run_cell).options(
            num_cpus=self.options.cell_cpus,
            num_gpus=gpus,
            max_retries=self.options.retries,
            name=cell.name,
        )
        mark = folder / _MARK
        if not mark.exists():
            write_bytes(mark, uuid.uuid4().hex.encode())
        where = Place(str(folder.resolve()), mark.read_text())
        return RayCell(self.ray, cell, folder, task.remote(cell.name, job, where, seconds))

    def _spare_gpu(self) -> float:
        """One GPU for a cell, where the cluster has any."""
        return 1.0 if self.ray.cluster_resources().get("GPU", 0) >= 1 else 0.0


@dataclass(frozen=True)
class Place:
    """The folder of a comparison, and the word in it."""

    folder: str
    word: str

    def seen(self) -> bool:
        """Whether this node sees the folder."""
        mark = Path(self.folder) / _MARK
        return mark.is_file() and mark.read_text() == self.word


@dataclass(frozen=True)
class Named:
    """All that a process needs to know of a cell."""

    name: str


def _run_cell(
    name: str, job: dict[str, Any], where: Place, seconds: float | None
) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """The task: the result of a cell, and its files where the driver does not see them."""
    if where.seen():
        return _watched(name, job, Path(where.folder), seconds), {}
    home = Path(tempfile.mkdtemp(prefix="weft-"))
    try:
        found = _watched(name, job, home, seconds)
        files = [path for path in (home / "cells" / name).rglob("*") if path.is_file()]
        kept = [path for path in files if "checkpoints" not in path.parts]
        return found, {str(p.relative_to(home)): p.read_bytes() for p in kept}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _watched(
    name: str, job: dict[str, Any], home: Path, seconds: float | None
) -> dict[str, Any] | None:
    """The result of a cell that runs in this folder; None if it was asked to stop."""
    cell: Any = Named(name)
    _note_worker(home / "cells" / name)
    process, stopped = CellProcess(cell, home, job, jobs=1, seconds=seconds), False
    while True:
        try:
            while not process.ended():
                time.sleep(_PAUSE)
            return process.result(stopped=stopped)
        except KeyboardInterrupt:  # cancelled: by Ray in this way
            if stopped:
                process.kill()
            process.stop()
            stopped = True


def _note_worker(folder: Path) -> None:
    """Write down who works on a cell; a retry adds a line."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "workers").open("a") as file:
        file.write(f"{socket.gethostname()}:{os.getpid()}\n")


class RayCell:
    """A cell as a task."""

    def __init__(self, ray: Any, cell: Cell, folder: Path, task: Any) -> None:
        self.ray, self.cell, self.task = ray, cell, task
        self.home, self.folder = folder, folder / "cells" / cell.name
        self.rest: list[Cell] = []
        self.began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the task was handed in."""
        return time.monotonic() - self.began

    def ended(self) -> bool:
        """Whether it is over."""
        return bool(self.ray.wait([self.task], timeout=0)[0])

    def passed(self) -> list[tuple[Cell, dict[str, Any]]]:
        """No cell shares a task."""
        return []

    def latest(self) -> Row:
        """The last row of its metrics, where its folder is seen from here."""
        return last_row(self.folder / "metrics.jsonl")

    def result(self, *, stopped: bool) -> dict[str, Any] | None:
        """Status, reason and measures; None if it has to go on another time."""
        errors = self.ray.exceptions
        try:
            found, files = self.ray.get(self.task)
        except errors.TaskCancelledError:
            return None
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            memory = isinstance(error, errors.OutOfMemoryError)
            return self._failed("out of memory" if memory else "failed", _first_line(error))
        except errors.RayTaskError as error:
            return None if stopped else self._failed("failed", _first_line(error))
        for name, data in files.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.home / name, data)
        return found

    def _failed(self, status: str, reason: str) -> dict[str, Any]:
        result = {"status": status, "reason": f"on Ray: {reason}", "measured": {}}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "result.json", result)
        return result

    def stop(self) -> None:
        """Ask it to save and end."""
        self.ray.cancel(self.task, force=False)

    def kill(self) -> None:
        """End it now."""
        if not self.ended():
            self.ray.cancel(self.task, force=True)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _check_answers(address: str) -> None:
    """Refuse an address at which nothing listens, without Ray's long wait."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        if address in ("auto", "local"):
            return
        raise WeftError(
            f"an address is HOST:PORT, or auto for a cluster on this machine; got {address!r}"
        )
    try:
        socket.create_connection((host, int(port)), _ANSWER).close()
    except OSError as cause:
        raise _unreachable(address, cause) from cause


def _unreachable(address: str | None, cause: BaseException) -> WeftError:
    where = f"at {address}" if address else "here"
    return WeftError(
        f"no Ray cluster answers {where} ({_first_line(cause)}); start one with `ray start --head` "
        "and give its HOST:PORT, or leave --address out to start one on this machine "
        f"(Python {sys.version_info.major}.{sys.version_info.minor} has to be that of the cluster)"
    )

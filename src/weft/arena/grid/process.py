"""The process of a cell, as the grid sees it: started, watched, ended, and what came of it.

Cells may also share a process, one after the other: `cell` is then the one at work, `rest` those
behind it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.arena.grid.cell import GRACE, INTERRUPTED
from weft.arena.grid.grid import Cell
from weft.files import read_json, write_json
from weft.printable import printable
from weft.rows import Row

COMMAND = (sys.executable, "-m", "weft.arena.grid.cell")
_TAIL = 4096  # bytes of a file's end that are read


class CellProcess:
    """A running cell; it ends when we do, because its input is a pipe from us."""

    def __init__(
        self,
        cell: Cell,
        folder: Path,
        job: dict[str, Any],
        *,
        jobs: int,
        seconds: float | None,
        behind: Sequence[tuple[Cell, dict[str, Any]]] = (),
    ) -> None:
        self.limit, self.home = seconds, folder / "cells"
        self.rest = [other for other, _ in behind]
        asked = {**job, "asked": time.time()}  # those behind do not wait for the process
        folders = [self._prepare(*own) for own in ((cell, asked), *behind)]
        self._turn(cell)
        self.killed_before = killed_for_memory()
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, *map(str, folders)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=process_environment(jobs),
                start_new_session=True,  # a Ctrl-C reaches us alone, and we pass it on
            )

    def _prepare(self, cell: Cell, job: dict[str, Any]) -> Path:
        folder = self.home / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("result.json", "facts.json"):
            (folder / name).unlink(missing_ok=True)
        write_json(folder / "job.json", job)
        return folder

    def _turn(self, cell: Cell) -> None:
        """This cell is at work from now on."""
        self.cell, self.folder = cell, self.home / cell.name
        self.began = time.monotonic()
        self.asked_at: float | None = None  # when it was sent the signal to end, past its limit

    def passed(self) -> list[tuple[Cell, dict[str, Any]]]:
        """Cells that left a result since the last look, but for the last one, and the results."""
        found = []
        while self.rest and (result := read_json(self.folder / "result.json")) is not None:
            found.append((self.cell, result))
            self._turn(self.rest.pop(0))
        return found

    @property
    def elapsed(self) -> float:
        """Seconds since its cell was begun."""
        return time.monotonic() - self.began

    def ended(self) -> bool:
        """Whether it is over; past its limit it is asked to end, then killed."""
        if self.process.poll() is not None:
            return True
        if self.limit is not None and self.elapsed > self.limit:
            if self.asked_at is None:
                self.asked_at = time.monotonic()
                self.send(signal.SIGTERM)
            elif time.monotonic() - self.asked_at > min(GRACE, self.limit):
                self.kill()
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it now."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Ask it to save and end."""
        self.send(signal.SIGINT)

    def latest(self) -> Row:
        """The last whole row of its metrics."""
        return last_row(self.folder / "metrics.jsonl")

    def result(self, *, stopped: bool) -> dict[str, Any] | None:
        """Status, reason and measures; None if it has to go on another time."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        found = read_json(self.folder / "result.json")
        if found is not None:
            return found
        if stopped:
            return None
        status, reason = self._died()
        measured = read_json(self.folder / "facts.json") or {}
        result = {"status": status, "reason": reason, "measured": measured}
        write_json(self.folder / "result.json", result)
        return result

    def _died(self) -> tuple[str, str]:
        """Why there is no result."""
        code = self.process.returncode
        if self.asked_at is not None and self.limit is not None:
            step = self.latest().get("step")
            where = "before its first row of metrics" if step is None else f"after step {step}"
            return "timed out", f"ended {where}, past its limit of {self.limit / 60:g} minutes"
        if code == -signal.SIGKILL:
            return self._killed()
        if code == INTERRUPTED:
            return "failed", "interrupted by a signal from outside; --retry goes on with it"
        if code < 0:
            return "failed", f"ended by {signal.Signals(-code).name}; see {self._log()}"
        last = _tail(self.folder / "log.txt").decode(errors="replace").strip().splitlines()
        said = printable(last[-1][:300]) if last else f"exit status {code}"
        return "failed", f"{said}; see {self._log()}"

    def _killed(self) -> tuple[str, str]:
        """By Linux, which counts those that it ends for lack of memory, or by someone."""
        now = killed_for_memory()
        if now is None or self.killed_before is None:
            return "failed", "killed (SIGKILL): by someone, or by the system if memory ran out"
        if now > self.killed_before:
            return "out of memory", "killed by the system (SIGKILL), because memory ran out"
        return (
            "failed",
            "killed by someone (SIGKILL), not for lack of memory; --retry runs it again",
        )

    def _log(self) -> str:
        return f"cells/{self.cell.name}/log.txt"


def last_row(path: Path) -> Row:
    """The last whole row of a file that may still grow; empty without one."""
    lines = _tail(path).rpartition(b"\n")[0].splitlines()
    try:
        return json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}


def killed_for_memory() -> int | None:
    """How many processes Linux has ended for lack of memory; None where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def process_environment(jobs: int) -> dict[str, str]:
    """Ours, with the cores shared out, and this weft on the path."""
    source = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (cores or 1) // jobs)))
    # Threads that spin while they wait make a machine that does anything else many times slower.
    waiting = os.environ.get("OMP_WAIT_POLICY", "passive")
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": waiting}
    return {**os.environ, **own}


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read()
    except OSError:
        return b""

"""`python -m weft.arena.grid.cell FOLDER ...`: one cell of a grid, in a process of its own.

The folder holds `job.json`; the cell trains there and leaves `result.json`: status, reason and
measures. Asked to stop (SIGINT, SIGTERM, or its parent gone), it saves its training and ends
without a result, so that the next process goes on where it was. Several folders are cells that
share the start-up of one process, one after the other.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from weft.arena.analysis.span import required_spans
from weft.arena.experiment.runs import rows_of, run_of
from weft.arena.experiment.settings import Experiment, experiment
from weft.arena.experiment.time_plan import TimePlan
from weft.arena.grid.measure import (
    final_scores,
    is_out_of_memory,
    outcome_row,
    reason_of,
    sizes,
)
from weft.config import read
from weft.environment import environment
from weft.errors import Unsupported, WeftError
from weft.files import locked, read_json, write_json
from weft.kernels.planner.context import forced
from weft.models import load
from weft.plugins import load_plugins
from weft.rows import Row, append
from weft.training.loop import train
from weft.training.settings import device_named

INTERRUPTED = 130  # the exit status of a cell that saved and stopped
GRACE = 10.0  # seconds to save in


def every(folders: Sequence[Path]) -> int:
    """Run cells one after another; the exit status of the last that ran."""
    with ending_with_parent():
        for folder in folders:
            if status := main(folder):
                return status
            gc.collect()  # the model of this cell, before the next one is measured
    return 0


def main(folder: Path) -> int:
    """Run the cell; the exit status is 0 if there is a result, whatever it says.

    Where the job says when it was asked for, the start of the process counts as waited for.
    """
    job = read_json(folder / "job.json")
    waited = time.time() - job["asked"] if "asked" in job else 0.0
    with locked(folder / ".cell.lock", wait=True):
        measured: Row = {}
        try:
            limit_memory(job["memory_limit"])
            load_plugins(job["plugins"])
            own = experiment(job["experiment"])
            measured.update(environment(device_named(own.training.device).type))
            plan = None if job.get("plan") is None else read(TimePlan, job["plan"], "plan")
            clock = _Clock(own.training.minutes, waited)
            dense = experiment(job["dense"])
            done = _run(folder, own, dense, job["span_samples"], measured, plan, clock)
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:
            traceback.print_exc()
            result = {"status": _status(error), "reason": reason_of(error), "measured": measured}
        else:
            if not done:
                return INTERRUPTED
            result = {"status": "done", "reason": None, "measured": measured}
        write_json(folder / "result.json", result)
    return 0


class _Clock:
    """What has been waited for: before the training, in it (all resumptions), and after it."""

    def __init__(self, minutes: float | None, waited: float) -> None:
        self.minutes, self.earlier, self.since = minutes, waited, time.perf_counter()

    def trained(self, seconds: float) -> None:
        """The training is over: it took this long, resumptions included."""
        self.earlier, self.since = self.earlier + seconds, time.perf_counter()

    @property
    def waited(self) -> float:
        """Seconds."""
        return self.earlier + time.perf_counter() - self.since

    @property
    def left(self) -> float | None:
        """Seconds of the minutes; None: as long as it takes."""
        return None if self.minutes is None else 60 * self.minutes - self.waited


def _run(
    folder: Path,
    own: Experiment,
    dense: Experiment,
    spans: int,
    measured: Row,
    plan: TimePlan | None,
    clock: _Clock,
) -> bool:
    """Train, score, measure; False if it was asked to stop."""
    measured.update(sizes(own, dense))
    write_json(folder / "facts.json", measured)
    unfused = forced("dense") if own.unfused else nullcontext()
    with unfused:
        run = run_of(own, plan)
        reserve, before = plan.reserve if plan is not None else 0.0, clock.waited
        outcome = train(run, folder, waited=before, reserve=reserve)
        if outcome.status != "done":
            return False
        clock.earlier = before
        clock.trained(outcome.seconds)
        measured.update({k: v for k, v in outcome_row(outcome).items() if v is not None})
        measured.update(final_scores(folder, own, outcome, plan))
        if spans:
            measured["span"] = _spans(folder, own, outcome.model, spans, clock.left)
        measured["cell_seconds"] = clock.waited
    return True


def _spans(
    folder: Path, own: Experiment, model: str, samples: int, seconds: float | None
) -> float | None:
    """Spans by layer and head into spans.jsonl, and their mean."""
    device = device_named(own.training.device)
    rows = required_spans(
        *(load(folder / model), rows_of(own, "valid")),
        samples=samples,
        device=device,
        seconds=seconds,
    )
    path = folder / "spans.jsonl"
    path.unlink(missing_ok=True)
    append(path, rows)
    return sum(row["span"] for row in rows) / len(rows) if rows else None


def _status(error: BaseException) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    return "unsupported" if isinstance(error, Unsupported) else "failed"


def limit_memory(limit: int | None) -> None:
    """Limit the memory that the process may still allocate, in bytes."""
    if limit is None:
        return
    if not Path("/proc/self/statm").exists():
        raise WeftError("a memory limit needs Linux; leave it out here")
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + limit
    # The soft limit alone: the next cell of this process may set its own.
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def ending_with_parent() -> Iterator[None]:
    """Stop when the pipe from the grid closes: a grid that was killed leaves no process behind."""
    signal.signal(signal.SIGTERM, _stop)
    # The signal that asks a cell to save: blocked by workers of Ray, ignored by what runs in the
    # background of a shell, and processes inherit both.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    over, end = os.pipe()
    # A thread that still read sys.stdin would end the interpreter's shutdown in a fatal error.
    watcher = threading.Thread(target=_watch, args=(0, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(over)


def _watch(parent: int, over: int) -> None:
    """Wait for the end of one of two pipes: the parent's, or that of this cell's own work."""
    while True:
        ready, _, _ = select.select([parent, over], [], [])
        if over in ready:
            return
        if not os.read(parent, 4096):
            break
    os.kill(os.getpid(), signal.SIGTERM)
    if not select.select([over], [], [], GRACE)[0]:
        os._exit(INTERRUPTED)


def _stop(number: int, frame: Any) -> None:
    """Outside of training there is nothing to save."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(every([Path(folder) for folder in sys.argv[1:]]))

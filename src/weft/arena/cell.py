"""`python -m weft.arena.cell FOLDER ...`: one cell of a grid, in a process of its own.

The folder holds `job.json`; the cell trains there and leaves `result.json`: status, reason and
measures. Asked to stop (SIGINT, SIGTERM, or its parent gone), it saves its training and ends
without a result, so that the next process goes on where it was. Several folders are cells that
share the start-up of one process, one after the other.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from weft.arena.files import alone, read_json
from weft.arena.flops import attention_by
from weft.arena.grid import plugged
from weft.arena.measure import (
    final_scores,
    is_out_of_memory,
    outcome_row,
    reason_of,
    sizes,
)
from weft.arena.runs import run_of
from weft.arena.settings import Experiment, experiment
from weft.arena.span import required_spans
from weft.arena.tasks import TASKS
from weft.environment import environment
from weft.errors import Unsupported, WeftError
from weft.kernels.attend import attend
from weft.models import load
from weft.rows import Row, append
from weft.training.loop import train
from weft.training.record import write_json
from weft.training.settings import device_named

INTERRUPTED = 130  # the exit status of a cell that saved and stopped
GRACE = 10.0  # seconds to save in


def every(folders: Sequence[Path]) -> int:
    """Run cells one after another; the exit status of the last that ran."""
    _end_with_parent()
    for folder in folders:
        if status := main(folder):
            return status
        gc.collect()  # the model of this cell, before the next one is measured
    return 0


def main(folder: Path) -> int:
    """Run the cell; the exit status is 0 if there is a result, whatever it says."""
    job = read_json(folder / "job.json")
    with alone(folder / ".cell.lock", wait=True):
        measured: Row = {}
        try:
            _limit_memory(job["memory_limit"])
            plugged(job["plugins"])
            own = experiment(job["experiment"])
            measured.update(environment(device_named(own.training.device).type))
            done = _run(folder, own, experiment(job["dense"]), job["span_samples"], measured)
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


def _run(folder: Path, own: Experiment, dense: Experiment, spans: int, measured: Row) -> bool:
    """Train, score, measure; False if it was asked to stop."""
    measured.update(sizes(own, dense))
    write_json(folder / "facts.json", measured)
    unfused = attention_by(partial(attend, kernel="dense")) if own.unfused else nullcontext()
    with unfused:
        outcome = train(run_of(own), folder)
        if outcome.status != "done":
            return False
        measured.update({k: v for k, v in outcome_row(outcome).items() if v is not None})
        measured.update(final_scores(folder, own, outcome))
        if spans:
            measured["span"] = _spans(folder, own, outcome.model, spans)
    return True


def _spans(folder: Path, own: Experiment, model: str, samples: int) -> float | None:
    """Spans by layer and head into spans.jsonl, and their mean."""
    device = device_named(own.training.device)
    rows = required_spans(
        load(folder / model), TASKS.parse(own.task).load("valid"), samples=samples, device=device
    )
    path = folder / "spans.jsonl"
    path.unlink(missing_ok=True)
    append(path, rows)
    return sum(row["span"] for row in rows) / len(rows) if rows else None


def _status(error: BaseException) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    return "unsupported" if isinstance(error, Unsupported) else "failed"


def _limit_memory(limit: int | None) -> None:
    """Let the process grow by so many bytes at most, from here on."""
    if limit is None:
        return
    if not Path("/proc/self/statm").exists():
        raise WeftError("a memory limit needs Linux; leave it out here")
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + limit
    # The soft limit alone: the next cell of this process may set its own.
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _end_with_parent() -> None:
    """Stop when the pipe from the grid closes: a grid that was killed leaves no one behind."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=watch, daemon=True).start()


def _stop(number: int, frame: Any) -> None:
    """Outside of training there is nothing to save."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(every([Path(folder) for folder in sys.argv[1:]]))

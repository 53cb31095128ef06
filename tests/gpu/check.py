"""All GPU tests by one command, in processes side by side, within a limit of time.

    python tests/gpu/check.py [--minutes 9] [--jobs 12] [--only WORD] [--list]

Needs torch and weft; pytest is used where it is installed, and stood for where it is not. A line
for each test; a process that dies (an illegal address, say) fails its test alone. The status is 0
if all tests ran and passed. Tests that the limit leaves out are named: they did not pass.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import json
import queue
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
LONGEST = ("test_flex_gpu", "test_cuda_graphs_gpu", "test_kernels_gpu")  # begun first


def stand_in() -> types.ModuleType:
    """What the tests here use of pytest: marks, and errors that are expected."""

    def parametrize(names: str, values: Any, ids: Any = None) -> Callable[..., Any]:
        def mark(test: Any) -> Any:
            own = types.SimpleNamespace(name="parametrize", args=(names, list(values)))
            test.pytestmark = [*getattr(test, "pytestmark", []), own]
            return test

        return mark

    @contextlib.contextmanager
    def raises(kind: Any, match: str = "") -> Iterator[None]:
        try:
            yield
        except kind:
            return
        raise AssertionError(f"{kind} was not raised")

    made = types.ModuleType("pytest")
    made.mark = types.SimpleNamespace(parametrize=parametrize, gpu="gpu")
    made.raises = raises
    return made


def prepare() -> None:
    """Make the test files importable."""
    sys.path[:0] = [str(HOME), str(HOME.parents[1] / "src")]
    try:
        import pytest  # noqa: F401
    except ImportError:
        sys.modules["pytest"] = stand_in()


def cases(test: Any) -> list[dict[str, Any]]:
    """The arguments of each call that a test's marks ask for."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if getattr(mark, "name", "") != "parametrize":
            continue
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values = [getattr(value, "values", value) for value in mark.args[1]]
        alone = len(names) == 1
        axes.append([dict(zip(names, [v] if alone else v, strict=True)) for v in values])
    return [
        {k: v for part in chosen for k, v in part.items()} for chosen in itertools.product(*axes)
    ]


def collected(wanted: str = "") -> list[tuple[str, str, int]]:
    """(file, test, number of the case) of every call, the longest files first."""
    found = []
    for path in sorted(HOME.glob("test_*.py"), key=lambda p: (p.stem not in LONGEST, p.stem)):
        module = importlib.import_module(path.stem)
        for name, test in vars(module).items():
            if name.startswith("test_") and callable(test):
                count = len(cases(test))
                calls = [(path.stem, name, number) for number in range(count)]
                found += [call for call in calls if wanted in f"{call[0]}::{call[1]}"]
    return found


def work() -> None:
    """Run the calls that stdin names, one line of JSON for each on stdout."""
    prepare()
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        file, name, number = json.loads(line)
        test = getattr(importlib.import_module(file), name)
        given = cases(test)[number]
        began, problem = time.monotonic(), ""
        try:
            import torch

            torch.manual_seed(0)
            with contextlib.redirect_stdout(io.StringIO()):
                test(**given)
            torch.cuda.synchronize()
        except BaseException as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        answer = {
            "problem": problem,
            "seconds": time.monotonic() - began,
            "given": str(given)[:120],
        }
        print(json.dumps(answer), file=answers, flush=True)


def run(calls: list[tuple[str, str, int]], jobs: int, minutes: float) -> int:
    """How many calls failed or were left out."""
    waiting: queue.Queue = queue.Queue()
    for call in calls:
        waiting.put(call)
    end, failed, ran, lock = time.monotonic() + 60 * minutes, [], [], threading.Lock()

    def serve() -> None:
        worker = None
        while time.monotonic() < end:
            try:
                call = waiting.get_nowait()
            except queue.Empty:
                break
            worker = worker or started()
            answer = asked(worker, call, end)
            if answer is None or "CUDA error" in answer["problem"]:
                worker = ended(worker)  # what follows in this process would fail as well
            answer = answer or {"problem": "died, or the time was over", "seconds": 0, "given": ""}
            with lock:
                ran.append(call)
                if answer["problem"]:
                    failed.append(call)
                verdict = f"FAILED {answer['problem']}" if answer["problem"] else "ok"
                what = f"{call[0]}::{call[1]} {answer['given']}"
                print(f"{answer['seconds']:6.1f} s  {what}  {verdict}", flush=True)
        if worker is not None:
            ended(worker)

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = [call for call in calls if call not in ran]
    for call in left:
        print(f"NOT RUN  {call[0]}::{call[1]}, case {call[2]}", flush=True)
    print(f"{len(ran) - len(failed)} passed, {len(failed)} failed, {len(left)} not run")
    return len(failed) + len(left)


def started() -> subprocess.Popen:
    """A process that runs calls."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, **pipes)


def ended(worker: subprocess.Popen) -> None:
    """End a process that runs calls."""
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def asked(worker: subprocess.Popen, call: tuple, end: float) -> dict[str, Any] | None:
    """The answer to one call; None if the process died or the time was over."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    over = threading.Timer(max(end - time.monotonic(), 1), worker.kill)
    over.start()
    try:
        print(json.dumps(call), file=worker.stdin, flush=True)
        line = worker.stdout.readline()
    except OSError:
        return None
    finally:
        over.cancel()
    return json.loads(line) if line else None


def main() -> int:
    """Run all, or those that are wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--only", default="", help="calls whose file::test holds this")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work()
        return 0
    prepare()
    calls = collected(given.only)
    if given.list:
        for file, name, number in calls:
            print(f"{file}::{name}, case {number}")
        print(f"{len(calls)} calls")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("these tests need a CUDA device")
        return 2
    return int(run(calls, given.jobs, given.minutes) > 0)


if __name__ == "__main__":
    raise SystemExit(main())

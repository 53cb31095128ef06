"""The cells of a grid as tasks of a Ray cluster on this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from weft.arena.grid.compare import GridOptions, compare
from weft.arena.grid.engine import engine_of
from weft.errors import WeftError

try:
    import ray
except ImportError:
    ray = None
needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed: pip install ray")
CLOCK = ("seconds", "second", "train_seconds", "peak_bytes", "date", "commit")


def options(**changes):
    return GridOptions(**{"engine": "ray", "cell_cpus": 0.5, **changes})


def grid(seeds=4, steps=6):
    from weft.arena.experiment.settings import experiment
    from weft.arena.grid.grid import Grid

    tables = {
        "task": {"name": "reversal", "length": 8, "train": 64, "valid": 16, "test": 16},
        "model": {"layers": 1, "dim": 8, "heads": 2},
        "training": {"steps": steps, "batch": 4, "save_every": 2, "log_every": 1, "device": "cpu"},
    }
    ones = {name: experiment({**tables, "mixer": name}) for name in ("full", "linear_transformer")}
    return Grid(contenders=ones, seeds=tuple(range(seeds)), span_samples=0)


def told(row):
    """A row without what a clock and a machine say."""
    return {k: v for k, v in row.items() if not any(word in k for word in CLOCK)}


def test_without_ray_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(WeftError, match=r"pip install ray"):
        engine_of(options())


@needs_ray
def test_an_address_that_does_not_answer_is_refused():
    with pytest.raises(WeftError, match="no Ray cluster answers at localhost:9"):
        engine_of(options(address="localhost:9"))


def test_a_node_that_does_not_start_is_said_in_words(monkeypatch):
    def init(**_):
        raise Exception("The current node timed out during startup.")

    fake = types.SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(WeftError, match=r"timed out during startup.*ray start --head"):
        engine_of(options())


@needs_ray
def test_an_address_has_a_port():
    with pytest.raises(WeftError, match="HOST:PORT"):
        engine_of(options(address="somewhere"))


def test_an_address_without_ray_is_refused():
    with pytest.raises(WeftError, match="add --engine ray"):
        GridOptions(address="localhost:6379")


def test_an_engine_is_one_of_two():
    with pytest.raises(WeftError, match="pool or ray"):
        GridOptions(engine="rai")


@needs_ray
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_eight_cells_give_the_rows_of_the_pool_and_a_killed_worker_costs_a_retry(tmp_path):
    pool = compare(grid(), tmp_path / "pool", GridOptions(jobs=2))
    killed = []

    def kill_one():
        """The worker of the first cell that trains."""
        cells = tmp_path / "ray" / "cells"
        while not killed:
            time.sleep(0.05)
            for log in cells.glob("*/metrics.jsonl"):
                killed.append(log.parent.name)
                os.kill(int((log.parent / "workers").read_text().split(":")[-1]), signal.SIGKILL)
                return

    watcher = threading.Thread(target=kill_one, daemon=True)
    watcher.start()
    found = compare(grid(), tmp_path / "ray", options())
    assert len(found.rows) == 8
    key = lambda row: (row["label"], row["seed"])  # noqa: E731
    ours, theirs = (sorted(each.rows, key=key) for each in (found, pool))
    assert [told(row) for row in ours] == [told(row) for row in theirs]
    workers = [
        len((tmp_path / "ray" / "cells" / name / "workers").read_text().split())
        for name in sorted(p.name for p in (tmp_path / "ray" / "cells").iterdir())
    ]
    assert sorted(workers) == [1] * 7 + [2], json.dumps(workers)


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_ray_engine import compare, grid, options
found = compare(grid(1, 600), Path(sys.argv[1]), options())
print("missing", found.missing)
"""


@needs_ray
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_ctrl_c_lets_cells_save_and_the_same_grid_goes_on(tmp_path):
    out, program, said = tmp_path / "grid", tmp_path / "driver.py", tmp_path / "said"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(out), str(Path(__file__).parent)]
    with said.open("w") as file:
        driver = subprocess.Popen(command, stdout=file, stderr=file)
    logs = lambda: list(out.glob("cells/*/metrics.jsonl"))  # noqa: E731
    while not logs():
        assert driver.poll() is None, said.read_text()
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=300) == 0, said.read_text()
    assert said.read_text().split()[-2:] == ["missing", "2"]
    assert not [line for line in processes() if str(out) in line]
    (log,) = logs()[:1]
    done = len(log.read_text().splitlines())
    assert done < 600
    found = compare(grid(1, 600), out, GridOptions(jobs=2))  # either engine goes on
    assert (found.missing, len(found.rows)) == (0, 2)
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    trained = [row["step"] for row in steps if row["kind"] == "train"]
    assert trained == list(range(1, 601))  # no step twice: it went on from its checkpoint


def processes():
    """The command lines of all processes."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue

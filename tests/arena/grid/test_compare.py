"""Grids: cells that fail become rows, and a grid that is stopped or killed goes on where it was."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from small_grids import finished, grid, weft

from weft.arena.grid import compare as grids
from weft.arena.grid import process as processes
from weft.arena.grid.compare import GridOptions, compare
from weft.rows import read

# Stands for a cell: does by the name of its mechanism what cells may come to.
ACTOR = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
model = json.loads((folder / "job.json").read_text())["experiment"]["model"]
mixer = model["trunk"]["stack"].get("mixer", {"name": "full"})["name"]
def hang(): time.sleep(1000)
if mixer == "full":
    result = {"status": "done", "reason": None, "measured": {"valid_score": 0.5}}
    (folder / "result.json").write_text(json.dumps(result))
elif mixer == "fnet":
    os.kill(os.getpid(), signal.SIGKILL)
elif mixer == "linformer":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # not even asked nicely
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 7}\\n')
    hang()
elif mixer == "reformer":
    (folder / "facts.json").write_text('{"parameters": 12}')
    sys.exit("what a pity")
elif mixer == "synthesizer":
    os.kill(os.getpid(), signal.SIGSEGV)
elif mixer == "longformer":
    sys.exit(130)
"""


@pytest.fixture
def actor(tmp_path, monkeypatch):
    (tmp_path / "actor.py").write_text(ACTOR)
    command = (sys.executable, "-I", "-S", str(tmp_path / "actor.py"))
    monkeypatch.setattr(processes, "COMMAND", command)
    monkeypatch.setattr(processes, "GRACE", 0.2)


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_end_becomes_a_row(tmp_path, actor, jobs):
    one = grid("fnet, linformer, reformer, synthesizer, longformer")
    heard = []

    class Listener(grids.Listener):
        def row(self, cell, row):
            heard.append(cell.label)

    options = GridOptions(jobs=jobs, cell_minutes=2 / 60)
    found = compare(one, tmp_path / "run", options, Listener())
    assert found.finished
    assert sorted(heard) == sorted(one.contenders)
    rows = {row["label"]: row for row in read(tmp_path / "run" / "rows.jsonl")}
    assert len(rows) == 6
    ends = {label: (row["status"], row["reason"]) for label, row in rows.items()}
    assert ends["full"] == ("done", None)
    assert ends["fnet"][0] == "failed"
    assert "killed by someone (SIGKILL)" in ends["fnet"][1]
    assert ends["linformer"][0] == "timed out"
    assert ends["linformer"][1] == "ended after step 7, past its limit of 0.0333333 minutes"
    assert ends["reformer"] == ("failed", "what a pity; see cells/reformer-15-0/log.txt")
    assert rows["reformer"]["parameters"] == 12
    assert ends["synthesizer"] == (
        "failed",
        "ended by SIGSEGV; see cells/synthesizer-15-0/log.txt",
    )
    assert ends["longformer"][0] == "failed"
    assert "--retry goes on" in ends["longformer"][1]


@pytest.mark.parametrize(
    ("counts", "status", "reason"),
    [
        ((4, 5), "out of memory", "because memory ran out"),
        ((4, 4), "failed", "killed by someone"),
        ((None, None), "failed", "by someone, or by the system"),
    ],
    ids=["by the system", "by a person", "unknown"],
)
def test_who_killed_a_cell(tmp_path, actor, monkeypatch, counts, status, reason):
    given = iter(counts)
    monkeypatch.setattr(processes, "killed_for_memory", lambda: next(given))
    one = grid("fnet")
    cell = next(cell for cell in one.cells() if cell.label == "fnet")
    job = {"experiment": cell.experiment.tables()}
    process = processes.CellProcess(cell, tmp_path, job, jobs=1, seconds=None)
    process.process.wait()
    found = process.result(stopped=False)
    assert found["status"] == status
    assert reason in found["reason"]


def test_linux_says_how_many_it_killed():
    said = Path("/proc/vmstat").is_file() and "oom_kill " in Path("/proc/vmstat").read_text()
    assert (processes.killed_for_memory() is not None) == said


def test_cells_that_fail_become_rows(tmp_path):
    """The same with real cells: out of memory, an exception, a kill, and a refusal."""
    out = tmp_path / "run"
    mixers = "sliding_window(window=3),hungry,raising,killed,linformer"
    started = weft(
        *("--task", "tiny", "--mixers", mixers, "--steps", "3", "--out", str(out), "--jobs", "2"),
        *("--memory-limit", "1", "--span-samples", "4", "--set", "model.frame.positions=alibi"),
    )  # fmt: skip
    status, shown = finished(started)
    assert status == 3, shown
    assert "3 of 6 trainings have no result: " in shown
    assert "hungry (out of memory)" in shown
    assert "\x1b]0;" not in shown
    assert "\x1b[31m" not in shown
    rows = read(out / "rows.jsonl")
    assert len(rows) == 6
    found = {row["label"]: row for row in rows}
    assert {label: row["status"] for label, row in found.items()} == {
        "full": "done",
        "sliding_window": "done",
        "hungry": "out of memory",
        "raising": "failed",
        "killed": "failed",
        "linformer": "unsupported",
    }
    reason = r"RuntimeError: no luck with this one \x1b[31m\x1b]0;taken over\x07"
    assert found["raising"]["reason"] == reason
    assert "linformer" in found["linformer"]["reason"]
    for label in ("full", "sliding_window"):
        row = found[label]
        needed = ("test_score", "steps_per_second", "peak_bytes", "span", "flops_per_token")
        assert all(row[key] is not None for key in needed)
        assert (row["steps"], row["parameters_ratio"], row["dense"]) == (3, 1, label == "full")
    assert "no luck" in (out / found["raising"]["cell"] / "log.txt").read_text()
    assert json.loads((out / "baselines.json").read_text()) == {"chance": 0.25}
    spans = read(out / "spans.jsonl")
    assert {row["label"] for row in spans} == {"full", "sliding_window"}
    assert all(row["span"] < 3 for row in spans if row["label"] == "sliding_window")
    assert (out / "report.html").stat().st_size > 0
    for text in ("out of memory", "no luck", "report:"):
        assert text in shown


@pytest.mark.long
def test_a_real_cell_that_hangs_is_ended(tmp_path):
    out = tmp_path / "run"
    args = ("--task", "tiny", "--mixers", "hanging", "--steps", "3", "--out", str(out))
    status, shown = finished(weft(*args, "--cell-minutes", "2", "--jobs", "2"), 600)
    assert status == 3, shown
    found = {row["label"]: row["status"] for row in read(out / "rows.jsonl")}
    assert found == {"full": "done", "hanging": "timed out"}


def steps_of(folder, kind):
    return [row["step"] for row in read(folder / "metrics.jsonl") if row["kind"] == kind]


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.long
def test_a_killed_and_a_stopped_grid_go_on(tmp_path):
    """SIGKILL while the first cell trains, SIGINT during the second start, then to the end."""
    out = tmp_path / "run"
    own = out / "cells" / "full-8-0"
    args = ("--task", "tiny(pause=0.05)", "--mixers", "full", "--steps", "45", "--out", str(out))
    args += (
        "--span-samples",
        "0",
        "--set",
        "training.save_every=5",
        "--set",
        "training.log_every=5",
    )

    def reached(step):
        return lambda: (own / "metrics.jsonl").exists() and step in steps_of(own, "train")

    first = weft(*args)
    wait_for(reached(10))
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    assert children
    first.kill()
    first.communicate()
    wait_for(lambda: not any(alive(child) for child in children), 30)
    assert not (out / "rows.jsonl").exists()
    saved = max(steps_of(own, "train"))

    second = weft(*args)
    wait_for(reached(saved + 10))
    second.send_signal(signal.SIGINT)
    status, shown = finished(second)
    assert status == 130, shown
    assert "1 trainings to go" in shown
    assert not (out / "rows.jsonl").exists() or read(out / "rows.jsonl") == []

    status, shown = finished(weft("--out", str(out)))
    assert status == 0, shown
    (row,) = read(out / "rows.jsonl")
    assert (row["status"], row["steps"]) == ("done", 45)
    assert steps_of(own, "train") == list(range(5, 46, 5)), "no row twice, none lost"

"""Grids: cells that fail become rows, and a grid that is stopped or killed goes on where it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.arena.experiment.model import Model
from weft.arena.experiment.settings import Experiment, Recipe, with_mixer
from weft.arena.grid import compare as grids
from weft.arena.grid import process as processes
from weft.arena.grid.compare import GridOptions, compare
from weft.arena.grid.grid import Grid, contenders, numbers, read_grid, sized, with_dense, write_grid
from weft.arena.grid.measure import MEASURES, row_of, seconds_to, with_targets
from weft.arena.tasks import TASKS, ListOps
from weft.config import changed
from weft.errors import WeftError
from weft.rows import append, read
from weft.training.settings import TrainingSettings

TASK = "key_value(pairs=4, symbols=8, values=4, train=64, valid=16, test=16)"
BASE = Experiment(
    task=TASK,
    model=changed(Model(), {"layers": 1, "dim": 16, "heads": 2}),
    training=TrainingSettings(steps=4, batch=8, device="cpu"),
)
SMALL = ["model.layers=1", "model.dim=8", "model.heads=1", "training.batch=8", "training.warmup=0"]


def grid(mixers="full", **given):
    found = contenders(Recipe(experiment=BASE), mixers)
    return Grid(contenders=with_dense(found, BASE), **given)


def weft(*args, **given):
    """`python -m weft compare ...` with the plugin of the tests, in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    changes = [part for change in SMALL for part in ("--set", change)]
    return subprocess.Popen(
        [sys.executable, "-m", "weft", "compare", "--plugin", "arena_plugin", *args, *changes],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **given,
    )


def finished(process, seconds=240):
    shown, _ = process.communicate(timeout=seconds)
    return process.returncode, shown


# What a grid is ---------------------------------------------------------------------------------


def test_dense_is_always_there():
    assert list(grid("fnet").contenders) == ["full", "fnet"]
    assert list(grid("fnet, full").contenders) == ["full", "fnet"]
    assert grid("fnet").dense == "full"
    with pytest.raises(WeftError, match="add the mixer 'full'"):
        Grid(contenders=contenders(Recipe(experiment=BASE), "fnet"))


def test_labels_are_short_and_unlike():
    found = grid("sliding_window(window=3), sliding_window(window=5), fnet, fnet")
    specs = ["sliding_window(window=3)", "sliding_window(window=5)"]
    assert list(found.contenders) == ["full", *specs, "fnet"]
    names = [cell.name for cell in found.cells()]
    assert len(set(names)) == 4
    assert not any(set(name) & set("()/, ") for name in names)


def test_a_name_alone_means_what_the_recipe_says():
    own = with_mixer(Experiment(task=TASK), "longformer(window=5)")
    recipe = Recipe(experiment=BASE, mixers={"longformer": own})
    assert contenders(recipe, "longformer")["longformer"] is own
    assert contenders(recipe, "longformer(window=7)")["longformer"] == with_mixer(
        BASE, "longformer(window=7)"
    )


def test_the_unfused_form_is_a_case_of_its_own():
    found = with_dense({}, BASE, unfused=True)
    cells = Grid(contenders=found).cells()
    assert [(c.label, c.dense, c.experiment.unfused) for c in cells] == [
        ("full", True, False),
        ("full, unfused", False, True),
    ]


def test_seeds_come_one_after_another_and_lengths_change_the_task():
    base = Experiment(task="listops(length=2000)", model=BASE.model)
    found = Grid(contenders=with_dense({}, base), seeds=(0, 1), lengths=(256, 512))
    cells = [(c.seed, c.length, c.experiment.training.seed) for c in found.cells()]
    assert cells == [(0, 256, 0), (0, 512, 0), (1, 256, 1), (1, 512, 1)]
    assert found.cells()[1].experiment.task == ListOps(length=512)


def test_a_task_without_a_length_says_so():
    with pytest.raises(WeftError, match="key_value has no setting 'length' to change to 99"):
        sized(TASKS.parse(TASK), 99)


@pytest.mark.parametrize("text", ["12,x", "", "1.5"])
def test_lengths_are_numbers(text):
    with pytest.raises(WeftError, match="separated by commas"):
        numbers(text, "lengths")


def test_a_folder_has_one_grid(tmp_path):
    one = grid("fnet", seeds=(0, 1), target=0.5)
    write_grid(tmp_path, one, "weft compare")
    write_grid(tmp_path, one, "another command")
    assert read_grid(tmp_path) == one
    with pytest.raises(WeftError) as caught:
        write_grid(tmp_path, grid("fnet, linformer", seeds=(0, 1), target=0.6))
    assert "target: 0.5 there, 0.6 now" in str(caught.value)
    assert "contenders.linformer: absent there" in str(caught.value)
    with pytest.raises(WeftError, match=r"has no grid\.json"):
        read_grid(tmp_path / "none")


# Rows -------------------------------------------------------------------------------------------


def ended(cell, status="done", **measured):
    return row_of(cell, status, None if status == "done" else "why", measured)


def test_every_row_has_every_key():
    done, failed = (
        ended(cell, status)
        for cell, status in zip(grid("fnet").cells(), ("done", "failed"), strict=True)
    )
    assert list(done) == list(failed)
    assert set(MEASURES) <= set(done)
    assert ended(grid().cells()[0], loss=float("nan"))["loss"] is None


def test_pandas_reads_the_rows_in_one_call(tmp_path):
    pandas = pytest.importorskip("pandas", reason="reads rows as a user would")
    cells = grid("fnet, linformer").cells()
    rows = [ended(cells[0], test_score=0.5), *(ended(cell, "failed") for cell in cells[1:])]
    append(tmp_path / "rows.jsonl", rows)
    table = pandas.read_json(tmp_path / "rows.jsonl", lines=True)
    assert list(table.columns) == list(rows[0])
    assert list(table["status"]) == ["done", "failed", "failed"]
    assert table["test_score"].notna().tolist() == [True, False, False]


def test_time_to_accuracy(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    scores = [(1, 0.2), (2, None), (3, 0.5), (4, 0.4), (5, 0.9)]
    rows = [{"kind": "valid", "seconds": s, "score": v} for s, v in scores]
    append(metrics, [{"kind": "train", "seconds": 0, "score": 1.0}, *rows])
    times = [seconds_to(metrics, aim, "accuracy") for aim in (0.2, 0.45, 0.9, 0.95)]
    assert times == [1, 3, 5, None]
    assert seconds_to(metrics, 0.3, "bits per byte") == 1
    assert seconds_to(tmp_path / "none.jsonl", 0.1, "accuracy") is None


def test_the_target_is_what_every_dense_run_reached(tmp_path):
    cells = grid("fnet", seeds=(0, 1)).cells()
    scores = {("full", 0): 0.8, ("full", 1): 0.6, ("fnet", 0): 0.7, ("fnet", 1): 0.5}
    rows = [ended(cell, valid_score=scores[cell.label, cell.seed]) for cell in cells]
    for row in rows:
        best = row["valid_score"]
        append(
            tmp_path / row["cell"] / "metrics.jsonl",
            [{"kind": "valid", "seconds": 10 * s, "score": best * s / 4} for s in (1, 2, 3, 4)],
        )
    found = with_targets(rows, tmp_path, None)
    assert {row["target"] for row in found} == {0.6}
    times = {(row["label"], row["seed"]): row["seconds_to_target"] for row in found}
    assert times == {("full", 0): 30, ("full", 1): 40, ("fnet", 0): 40, ("fnet", 1): None}
    assert {row["target"] for row in with_targets(rows, tmp_path, 0.1)} == {0.1}
    assert [row["target"] for row in with_targets(rows[1:2], tmp_path, None)] == [None]


class Unstarted:
    """Stands for the process of a cell, where none should be needed."""

    def __init__(self, cell, *_, **__):
        raise AssertionError(f"{cell.name} was started")


def test_what_has_ended_is_not_run_again(tmp_path, monkeypatch):
    """A row, or a result that no one lived to write down, is enough."""
    monkeypatch.setattr(grids, "CellProcess", Unstarted)
    one = grid("fnet")
    dense, other = one.cells()
    write_grid(tmp_path, one)
    append(tmp_path / "rows.jsonl", [ended(dense, valid_score=0.5)])
    place = tmp_path / "cells" / other.name
    place.mkdir(parents=True)
    result = {"status": "failed", "reason": "why", "measured": {"parameters": 3}}
    (place / "result.json").write_text(json.dumps(result))
    for _ in range(2):
        found = compare(one, tmp_path)
        assert found.finished
        rows = read(tmp_path / "rows.jsonl")
        assert {row["label"]: row["status"] for row in rows} == {"full": "done", "fnet": "failed"}
        assert rows[1]["parameters"] == 3
    with pytest.raises(AssertionError, match="fnet-15-0 was started"):
        compare(one, tmp_path, GridOptions(retry=True))
    assert [row["label"] for row in read(tmp_path / "rows.jsonl")] == ["full"]


def test_two_grids_do_not_share_a_folder(tmp_path):
    from weft.files import locked

    with (
        locked(tmp_path / ".lock", wait=False),
        pytest.raises(WeftError, match="another comparison"),
    ):
        compare(grid(), tmp_path)


# Processes --------------------------------------------------------------------------------------

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

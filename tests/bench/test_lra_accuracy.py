"""The script that runs Long Range Arena asks for the released settings and loses no row."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from weft.arena.experiment import fast
from weft.arena.experiment.settings import experiment
from weft.rows import append

PATH = Path(__file__).parents[2] / "benchmarks" / "cases" / "lra_accuracy.py"
SPEC = importlib.util.spec_from_file_location("lra_accuracy", PATH)
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)

SIZES = {  # of the released files: steps, batch, layers, width, length
    "listops": (5_000, 32, 4, 512, 2_000),
    "text": (20_000, 32, 4, 256, 1_000),
    "image": (35_000, 256, 1, 128, 1_024),
    "retrieval": (5_000, 32, 4, 128, 4_000),
    "pathfinder": (62_400, 512, 4, 32, 1_024),
}
CHUNKS = {"listops": 201, "text": 101, "image": 103, "retrieval": 401, "pathfinder": 103}


@pytest.mark.parametrize("task", SIZES)
def test_cells_have_the_released_sizes(task, tmp_path, monkeypatch):
    monkeypatch.setattr(fast, "device_named", torch.device)
    for folder in ("imdb", "cifar10", "peerread"):
        (tmp_path / folder).mkdir()
    cells = SCRIPT.CellFactory(str(tmp_path), ["training.device=cuda"])
    cell, job = cells.cell(SCRIPT.CellName(task, "full", 3), {})
    dense = cell.experiment
    sizes = (dense.training.steps, dense.training.batch, *list(dense.model.sizes().values())[:2])
    assert (*sizes, cell.length) == SIZES[task]
    assert (cell.seed, dense.training.seed, cell.dense) == (3, 3, True)
    assert dense.training.graph
    for mixer in ("full", "longformer"):
        whole = cells.contender(task, mixer).model.head
        assert whole.trimmed == (whole.pool == "first"), "a mean reads every row"
    cell, job = cells.cell(SCRIPT.CellName(task, "reformer"), {"graph": False})
    assert f"chunk={CHUNKS[task]}" in cell.experiment.mixer
    assert not cell.dense
    assert experiment(job["dense"]).mixer == "full"
    assert "graph" not in job["experiment"]["training"], "its default is false"
    assert job["experiment"]["training"]["compile"]


def test_every_published_mechanism_has_an_expected_time():
    names = {mixer for mixer, _ in SCRIPT.expected("listops")}
    assert len(names) == 11
    assert all({mixer for mixer, _ in SCRIPT.expected(task)} == names for task in SCRIPT.OWN)


def test_cells_of_the_modern_recipes_keep_their_phases(tmp_path, monkeypatch):
    monkeypatch.setattr(fast, "device_named", torch.device)
    cells = SCRIPT.CellFactory(str(tmp_path), ["training.device=cuda"], "modern")
    (name,) = [n for n in SCRIPT.cheap_first("listops", "sliding_window", "0", "modern")]
    cell, job = cells.cell(name, {})
    assert [phase.steps for phase in cell.experiment.phase] == [10_000, 15_000]
    assert experiment(job["experiment"]) == cell.experiment
    with pytest.raises(ValueError, match="tasks are image, listops, pathfinder, text; got 'pathx'"):
        list(SCRIPT.expected("pathx", "modern"))


def test_cheap_cells_come_first_and_second_seeds_last():
    order = SCRIPT.cheap_first("listops,retrieval", "full,linformer", "0,1")
    first = [
        ("retrieval", "linformer"),
        ("listops", "linformer"),
        ("listops", "full"),
        ("retrieval", "full"),
    ]
    assert order == [SCRIPT.CellName(*one, seed) for seed in (0, 1) for one in first]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("jobs 2\nlistops full", "got 'listops full'"),
        ("jobs 2\nlistops fulll 0", "got 'listops fulll 0'"),
        ("jobs 2\nlistopps full 0", "tasks are image"),
        ("listops full 0", "no line `jobs N`"),
    ],
)
def test_a_plan_that_cannot_be_read_leaves_the_last_one_in_force(tmp_path, capsys, text, told):
    path = tmp_path / "plan.txt"
    path.write_text("jobs 3\n\nlistops full 1\n")
    plan = SCRIPT.Plan(1, [], path)
    last = plan.read()
    assert last == (3, [SCRIPT.CellName("listops", "full", 1)])
    path.write_text(text)
    assert plan.read() == last
    assert told in capsys.readouterr().err


class Process:
    """A cell that ends at the second look, as its script says."""

    results: dict = {}  # noqa: RUF012
    started: list = []  # noqa: RUF012

    def __init__(self, cell, folder, job, *, jobs, seconds):
        self.cell, self.folder, self.looks, self.told = cell, folder / "cells" / cell.name, 0, []
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log.txt").write_text("what happened")
        self.graph = job["experiment"]["training"].get("graph", False)
        Process.started.append((cell.label, self.graph))

    def ended(self):
        self.looks += 1
        return self.told or (self.looks > 1 and self.cell.label != "full")

    def send(self, number):
        self.told.append(number)

    def latest(self):
        return {"step": self.looks}

    def result(self, *, stopped):
        if stopped:
            return None
        broken = self.cell.label == "linformer" and self.graph
        status = ("failed", "no graph") if broken else ("done", None)
        return {"status": status[0], "reason": status[1], "measured": {"test_score": 0.5}}

    def kill(self):
        raise AssertionError("it ends when it is told")


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    monkeypatch.setattr(fast, "device_named", torch.device)
    monkeypatch.setattr("weft.arena.grid.measure.device_named", torch.device)
    monkeypatch.setattr(SCRIPT, "CellProcess", Process)
    monkeypatch.setattr(SCRIPT, "PAUSE", 0.001)
    monkeypatch.setattr(Process, "started", [])
    plan = tmp_path / "plan.txt"
    plan.write_text("jobs 1\nlistops linformer 0\nlistops bigbird 0\n")
    cells = SCRIPT.CellFactory(str(tmp_path), ["training.device=cuda"])
    return SCRIPT.Scheduler(tmp_path, cells, SCRIPT.Plan(1, [], plan), None)


def test_a_cell_that_fails_is_tried_again_without_a_recorded_update(scheduler):
    scheduler.run()
    assert Process.started == [("linformer", True), ("linformer", False), ("bigbird", True)]
    rows = SCRIPT.found(scheduler.out / "rows.jsonl")
    assert [(row["label"], row["status"]) for row in rows] == [
        ("linformer", "done"),
        ("bigbird", "done"),
    ]
    (log,) = (scheduler.out / "failures").iterdir()
    assert log.read_text() == "what happened"
    scheduler.run()
    assert len(Process.started) == 3, "no cell is run twice"


@pytest.mark.parametrize("how", ["time", "file", "plan"])
def test_cells_are_stopped_by_time_by_a_file_and_by_the_plan(scheduler, how):
    scheduler.plan.path.write_text("jobs 2\nlistops full 0\nlistops bigbird 0\n")
    check = scheduler.check

    def checked():
        check()
        if scheduler.done(SCRIPT.CellName("listops", "bigbird")):
            if how == "time":
                scheduler.until = 0
            elif how == "file":
                (scheduler.out / "stop").touch()
            else:
                scheduler.plan.path.write_text("jobs 2\nlistops bigbird 0\n")

    scheduler.check = checked
    scheduler.run()
    assert not scheduler.running
    assert [row["label"] for row in SCRIPT.found(scheduler.out / "rows.jsonl")] == ["bigbird"]


def test_rows_and_curves_of_all_tasks_are_gathered(tmp_path):
    for task, label in (("text", "full"), ("image", "fnet")):
        row = {"task": task, "label": label, "seed": 0, "cell": f"cells/{label}", "test_score": 0.5}
        row |= {"dense": label == "full", "length": 9, "status": "done", "metric": "accuracy"}
        (tmp_path / task / row["cell"]).mkdir(parents=True)
        append(tmp_path / task / "rows.jsonl", [row | {"valid_score": 0.4}])
        points = [
            {"kind": kind, "step": 7, "score": 0.4, "loss": 1.0, "seconds": 2.0}
            for kind in ("train", "valid")
        ]
        append(tmp_path / task / row["cell"] / "metrics.jsonl", points)
    SCRIPT.gather(tmp_path)
    rows, curves = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("rows", "curves")
    )
    assert [(row["label"], row["target"]) for row in rows] == [("full", 0.4), ("fnet", None)]
    point = {"seed": 0, "step": 7, "score": 0.4, "loss": 1.0}
    assert curves == [
        {"task": "text", "label": "full", **point},
        {"task": "image", "label": "fnet", **point},
    ]

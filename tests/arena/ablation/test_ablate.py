"""Ablations: what a recipe means, rows from cells, resuming, and the published study."""

import json
import math
import sys

import numpy as np
import pytest

from weft.arena.ablation.ablate import BASE, ablate, read_ablation, resumed
from weft.arena.ablation.published import STUDY, published
from weft.arena.ablation.rows import write_table
from weft.arena.ablation.speed import measure_speed
from weft.arena.grid import process as processes
from weft.arena.grid.compare import GridOptions
from weft.arena.grid.grid import Grid, read_grid
from weft.errors import WeftError
from weft.rows import append, read

TASK = "key_value(pairs=4, symbols=8, values=4, train=64, valid=16, test=16)"
RECIPE = f"""
task = "{TASK}"
[model]
layers = 1
dim = 16
heads = 2
[training]
steps = 4
batch = 8
device = "cpu"
[[modification]]
name = "RMSNorm"
published = "RMSNorm"
model = {{norm.kind = "rms"}}
[[modification]]
name = "window, and a higher rate"
mixer = "sliding_window(window=3)"
training = {{lr = 0.01}}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_a_recipe_becomes_modifications_of_its_base(recipe):
    found = read_ablation(recipe, ["model.dim=32"], seeds=(0, 1))
    names = [own.name for own in found.modifications]
    assert names == [BASE, "RMSNorm", "window, and a higher rate"]
    base, rms, window = (own.experiment for own in found.modifications)
    stacks = [one.model.trunk.stack for one in (base, rms, window)]
    assert [stack.norm.kind for stack in stacks] == ["layer", "rms", "layer"]
    assert {stack.frame.dim for stack in stacks} == {32}
    assert (rms.mixer, window.mixer) == ("full", "sliding_window(window=3)")
    assert (rms.training.lr, window.training.lr) == (base.training.lr, 0.01)
    assert found.modifications[1].change == 'norm.kind = "rms"'
    assert "lr = 0.01" in found.modifications[2].change


def test_only_the_base_is_the_baseline(recipe, tmp_path):
    grid = read_ablation(recipe, seeds=(0, 1)).grid()
    assert [cell.label for cell in grid.cells() if cell.dense] == [BASE, BASE]
    assert grid.dense_like(grid.cells()[2]) == grid.contenders[BASE]
    with pytest.raises(WeftError, match="the base 'x'"):
        Grid(contenders=grid.contenders, base="x")


def test_final_trainings_are_longer_and_single(recipe):
    found = read_ablation(recipe, seeds=(3, 4), final_steps=9)
    cells = found.final_grid().cells()
    assert {(cell.seed, cell.experiment.training.steps) for cell in cells} == {(3, 9)}
    assert {cell.experiment.training.steps for cell in found.grid().cells()} == {4}


def test_some_of_them(recipe):
    found = read_ablation(recipe).only(["RMSNorm"])
    assert [own.name for own in found.modifications] == [BASE, "RMSNorm"]
    with pytest.raises(WeftError, match="no modification named 'RMSnorm'; did you mean 'RMSNorm'"):
        read_ablation(recipe).only(["RMSnorm"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[[modification]]\nname = "a"\n', "changes nothing"),
        ('[[modification]]\nmodel = {norm.kind = "rms"}\n', "a table with a name"),
        ('[[modification]]\nname = "a"\nmodle = {}\n', "did you mean 'model'"),
        ('[[modification]]\nname = "a"\nmodel = {nrom = 1}\n', "has no setting 'nrom'"),
        ('[[modification]]\nname = "RMSNorm"\nmodel = {norm.kind = "rms"}\n', "twice there"),
        (
            '[[modification]]\nname = "a"\npublished = "GEGLU"\nmodel = {norm.kind = "rms"}\n',
            "the study has no row 'GEGLU'; did you mean 'GeGLU'",
        ),
    ],
    ids=range(6),
)
def test_refuses_recipes(recipe, more, message):
    recipe.write_text(RECIPE + more)
    with pytest.raises(WeftError, match=message):
        read_ablation(recipe)


def test_refuses_a_recipe_without_modifications(recipe):
    recipe.write_text(RECIPE.partition("[[modification]]")[0])
    with pytest.raises(WeftError, match=r"write \[\[modification\]\]"):
        read_ablation(recipe)


# Stands for cells: a loss by mechanism and seed; the window dies at seed 1, taking its process.
ACTOR = """
import json, os, pathlib, sys
for place in sys.argv[1:]:
    folder = pathlib.Path(place)
    job = json.loads((folder / "job.json").read_text())["experiment"]
    seed = job["training"].get("seed", 0)
    stack = job["model"]["trunk"]["stack"]
    norm = stack.get("norm", {"kind": "layer"})["kind"]
    mixer = stack.get("mixer", {"name": "full"})["name"]
    with open(folder / "started.txt", "a") as file:
        file.write(f"{os.getpid()} ")
    if mixer != "full" and seed == 1:
        sys.exit("what a pity")
    loss = {"layer": 2.0, "rms": 1.5}[norm] + 0.1 * seed + (1.0 if mixer != "full" else 0.0)
    loss -= 0.01 * job["training"]["steps"]
    measured = {"loss": loss, "test_score": 10 * loss, "parameters": 100, "peak_bytes": 5}
    (folder / "result.json").write_text(
        json.dumps({"status": "done", "reason": None, "measured": measured})
    )
"""


@pytest.fixture
def actor(tmp_path, monkeypatch):
    (tmp_path / "actor.py").write_text(ACTOR)
    command = (sys.executable, "-I", "-S", str(tmp_path / "actor.py"))
    monkeypatch.setattr(processes, "COMMAND", command)


@pytest.mark.parametrize("jobs", [1, 3])
def test_seeds_share_a_process_and_survive_one_another(recipe, actor, tmp_path, jobs):
    out = tmp_path / "run"
    wanted = read_ablation(recipe, seeds=(0, 1, 2), final_steps=9)
    found = ablate(wanted, out, GridOptions(jobs=jobs))
    assert found.finished
    assert len(read(out / "rows.jsonl")) == 9
    processes_of = {
        (cell.label, cell.seed): (out / "cells" / cell.name / "started.txt").read_text().split()
        for cell in wanted.grid().cells()
    }
    assert all(len(own) == 1 for own in processes_of.values()), "no cell runs twice"
    own = {name: [processes_of[name, s][0] for s in range(3)] for name in wanted.grid().contenders}
    assert len(set(own[BASE])) == len(set(own["RMSNorm"])) == 1
    died = own["window, and a higher rate"]
    assert died[0] == died[1] != died[2], "what stood behind the dead one has a new process"
    rows = {row["label"]: row for row in write_table(wanted, out)}
    check_rows(rows)
    with pytest.raises(AssertionError):
        check_rows({**rows, BASE: {**rows[BASE], "early_std": 0.0}})
    assert read(out / "ablation.jsonl") == list(rows.values())
    assert resumed(out) == wanted


def check_rows(rows):
    """Against numpy, from the losses that the actor gives."""
    for label, losses, final in (
        (BASE, [1.96, 2.06, 2.16], 1.91),
        ("RMSNorm", [1.46, 1.56, 1.66], 1.41),
        ("window, and a higher rate", [2.96, 3.16], 2.91),
    ):
        row = rows[label]
        assert row["early_loss"] == pytest.approx(np.mean(losses))
        assert row["early_std"] == pytest.approx(np.std(losses, ddof=1))
        assert (row["seeds"], row["tried"]) == (len(losses), 3)
        assert row["final_loss"] == pytest.approx(final)
        assert row["quality"] == pytest.approx(10 * final)
    assert (rows[BASE]["published_early"], rows["RMSNorm"]["published_early"]) == (2.182, 2.167)
    assert rows["window, and a higher rate"]["published_early"] is None
    assert rows["window, and a higher rate"]["status"] == "failed"
    assert (rows[BASE]["steps"], rows[BASE]["final_steps"]) == (4, 9)


def test_a_rerun_goes_on_and_may_add_final_trainings(recipe, actor, tmp_path):
    out = tmp_path / "run"
    ablate(read_ablation(recipe, seeds=(0,)), out)
    before = (out / "rows.jsonl").read_text()
    assert ablate(read_ablation(recipe, seeds=(0,), final_steps=6), out).finished
    assert (out / "rows.jsonl").read_text() == before
    assert len(read(out / "final" / "rows.jsonl")) == 3
    assert resumed(out).final_steps == 6
    with pytest.raises(WeftError, match="other settings"):
        ablate(read_ablation(recipe, ["training.lr=0.5"], seeds=(0,)), out)
    assert resumed(out).final_steps == 6
    assert read_grid(out).base == BASE


def test_a_folder_without_an_ablation_is_none(tmp_path):
    with pytest.raises(WeftError, match="holds no ablation"):
        resumed(tmp_path)


def test_speed_is_taken_in_turns(recipe, tmp_path, monkeypatch):
    order = []
    from weft.arena.ablation import speed as ablate_speed

    class Learner:
        def __init__(self, stage, seed, device):
            self.name = stage.model.trunk.stack.norm.kind, stage.settings.lr

        def step(self, batch, number, made):
            order.append(self.name)

    monkeypatch.setattr(ablate_speed, "Learner", Learner)
    append(tmp_path / "speed.jsonl", [{"label": "old"}])
    wanted = read_ablation(recipe)
    rows = measure_speed(wanted, tmp_path, rounds=3, updates=2)
    assert read(tmp_path / "speed.jsonl") == rows
    assert [row["label"] for row in rows] == [own.name for own in wanted.modifications]
    assert all(row["steps_per_second"] > 0 and row["rounds"] == 3 for row in rows)
    turns = order[3 * ablate_speed.WARM_UP :]
    assert turns == 3 * [name for name in dict.fromkeys(order) for _ in range(2)]


def test_speed_leaves_out_what_cannot_be_trained(recipe, tmp_path):
    change = 'mixer = "linformer"\nmodel = {frame.positions = "alibi"}\n'
    more = f'[[modification]]\nname = "too wide"\n{change}'
    recipe.write_text(RECIPE + more)
    told = []
    rows = measure_speed(read_ablation(recipe), tmp_path, rounds=1, updates=1, told=told.append)
    assert [row["label"] for row in rows] == [BASE, "RMSNorm", "window, and a higher rate"]
    assert len(told) == 1
    assert told[0].startswith("too wide is not timed")


def test_the_study_is_the_papers():
    """Some cells of its table, and what its text says of the base: ± 0.005."""
    assert len({row.name for row in STUDY}) == len(STUDY) == 52
    base = published("vanilla")
    assert (base.early, base.spread, base.final, base.parameters) == (2.182, 0.005, 1.838, 223)
    best = min(STUDY, key=lambda row: row.early)
    assert (best.name, best.early) == ("SwiGLU", 2.127)
    assert published("product key memory").early == 2.155
    assert published("Fixup").final == 2.067
    assert all(1.7 < row.final < row.early < 3 and math.isfinite(row.superglue) for row in STUDY)


def test_results_are_plain_json(recipe, actor, tmp_path):
    out = tmp_path / "run"
    wanted = read_ablation(recipe, seeds=(0,))
    ablate(wanted, out)
    for row in write_table(wanted, out):
        assert all(v is None or isinstance(v, str | int | float | bool) for v in row.values())
    assert json.loads((out / "ablation.json").read_text())["seeds"] == [0]


@pytest.mark.long
def test_a_real_ablation(recipe, tmp_path):
    """Real processes of two seeds each, and the verb itself."""
    from typer.testing import CliRunner

    from weft.cli import app

    out = tmp_path / "run"
    args = ["ablate", str(recipe), "--out", str(out), "--seeds", "2", "--only", "RMSNorm"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    rows = read(out / "rows.jsonl")
    assert [(row["status"], row["seed"]) for row in rows] == [("done", 0), ("done", 1)] * 2
    assert len({row["loss"] for row in rows}) == 4
    table = {row["label"]: row for row in read(out / "ablation.jsonl")}
    losses = [row["loss"] for row in rows if row["label"] == "RMSNorm"]
    assert table["RMSNorm"]["early_loss"] == pytest.approx(np.mean(losses))
    assert (out / "report.html").exists()

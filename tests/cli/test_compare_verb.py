"""`weft compare`: what the options mean, and what it says when they mean nothing."""

import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from weft.arena.experiment import fast
from weft.arena.grid import compare as grids
from weft.arena.grid.grid import read_grid
from weft.cli import app

run = CliRunner().invoke
TASK = "key_value(pairs=4, symbols=8, values=4, train=64, valid=16, test=16)"


class Planned(Exception):
    """Raised instead of running."""


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """The grid that a call would run."""

    def stop(self, waiting):
        raise Planned

    monkeypatch.setattr(grids._Running, "run", stop)
    monkeypatch.setattr(grids, "_plans", lambda *given: {})  # no probe

    def call(*args):
        done = run(app, ["compare", *args, "--out", str(tmp_path / "run")])
        assert isinstance(done.exception, Planned), done.output
        return read_grid(tmp_path / "run")

    return call


def test_fast_is_for_all_contenders(planned, monkeypatch):
    monkeypatch.setattr(fast, "device_named", torch.device)
    cls = ("--set", "model.registers=1", "--set", "model.pool=first")
    asked = ("--task", TASK, "--mixers", "fnet", *cls, "--device", "cuda", "--fast")
    found = planned(*asked).contenders
    assert list(found) == ["full", "fnet"]
    for one in found.values():
        assert one.training.precision == "bfloat16"
        assert one.model.head.trimmed


def test_options_become_a_grid(planned):
    found = planned(
        *("--task", TASK, "--mixers", "sliding_window(window=5),fnet", "--seeds", "3"),
        *("--steps", "50", "--minutes", "2", "--device", "cpu", "--target", "0.9", "--unfused"),
        *("--span-samples", "7", "--set", "model.layers=2", "--set", "training.lr=0.5"),
    )  # fmt: skip
    assert list(found.contenders) == ["full", "full, unfused", "sliding_window", "fnet"]
    assert (found.seeds, found.target, found.span_samples) == ((0, 1, 2), 0.9, 7)
    one = found.contenders["sliding_window"]
    assert (str(one.task), one.mixer, one.model.sizes()["layers"]) == (
        TASK,
        "sliding_window(window=5)",
        2,
    )
    training = one.training
    assert (training.steps, training.minutes, training.device) == (50, 2.0, "cpu")
    assert (training.lr, training.warmup) == (0.5, 5)


def test_minutes_alone_end_the_training(planned):
    found = planned("--task", TASK, "--mixers", "full", "--minutes", "0.5")
    training = found.contenders["full"].training
    assert training.minutes == 0.5
    assert training.steps > 10**6
    assert training.schedule == "constant", "no schedule fits an unknown number of steps"


def test_a_recipe_names_the_contenders(planned, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        f'task = "{TASK}"\n[training]\nsteps = 9\n[mixers]\nfnet = "fnet"\n'
        'few = {mixer = "longformer(window=3)", model = {heads = 1}}\n'
    )
    found = planned("--recipe", str(path), "--steps", "8")
    assert list(found.contenders) == ["full", "fnet", "few"]
    assert found.contenders["few"].model.sizes()["heads"] == 1
    assert {one.training.steps for one in found.contenders.values()} == {8}


def test_own_data(planned, tmp_path):
    table = tmp_path / "reviews.csv"
    lines = [f"{'good' if i % 2 else 'bad'} number {i},{i % 2}" for i in range(60)]
    table.write_text("body,stars\n" + "\n".join(lines) + "\n")
    found = planned("--data", str(table), "--text", "body", "--label", "stars", "--mixers", "full")
    task = str(found.contenders["full"].task)
    assert task.startswith("table(")
    assert str(table) in task
    assert {"body", "stars"} <= set(task.replace("'", " ").split())


def test_the_folder_alone_goes_on(planned, tmp_path):
    before = planned("--task", TASK, "--mixers", "fnet")
    assert planned() == before
    done = run(app, ["compare", "--task", TASK, "--mixers", "full", "--out", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "holds a comparison with other settings" in done.output


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "say what to compare"),
        (["--task", TASK], 2, "say which mechanisms"),
        (["--task", TASK, "--mixers", "longformr"], 1, "did you mean 'longformer'"),
        (["--task", "listop", "--mixers", "full"], 1, "did you mean 'listops'"),
        (["--recipe", "lra_listop", "--mixers", "full"], 1, "no recipe named 'lra_listop'"),
        (["--task", TASK, "--mixers", "full", "--seeds", "0"], 2, "'--seeds'"),
        (["--task", TASK, "--mixers", "full", "--lengths", "a"], 1, "separated by commas"),
        (["--task", TASK, "--mixers", "full", "--lengths", "99"], 1, "has no setting 'length'"),
        (["--task", TASK, "--mixers", "full", "--set", "model.deep=2"], 1, "no setting 'deep'"),
        (
            ["--task", TASK, "--mixers", "full", "--plugin", "no_such"],
            1,
            "cannot import the plug-in",
        ),
        (["--task", TASK, "--mixers", "full", "--device", "tpu"], 2, "'--device'"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_a_wrong_call(tmp_path, args, status, message):
    done = run(app, ["compare", *args, "--out", str(tmp_path / "run")])
    assert done.exit_code == status, done.output
    assert message in " ".join(done.output.replace("│", " ").split())


def test_the_verbs_load_no_torch_until_they_run():
    program = "import sys, weft.cli; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_torchrun_is_told_what_to_do(planned, tmp_path, monkeypatch):
    """Each of its processes would train the whole grid in one folder."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run(
        app, ["compare", "--task", "listops", "--mixers", "full", "--out", str(tmp_path / "runs")]
    )
    assert done.exit_code == 1
    assert "call weft without torchrun" in " ".join(done.output.split())

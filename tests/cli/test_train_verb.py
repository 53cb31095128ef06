"""`weft train` and `weft eval`: from one file of settings to a score."""

import json
import re

import pytest
from typer.testing import CliRunner

from weft.arena.experiment.settings import read_experiment
from weft.cli import app
from weft.models import load
from weft.rows import read

run = CliRunner().invoke
FILE = """
mixer = "full"
task = "key_value(pairs=2, symbols=8, values=2, train=64, valid=20, test=30)"
[model]
layers = 1
dim = 16
heads = 2
[training]
steps = 6
batch = 8
device = "cpu"
log_every = 2
[mixers]
near = {mixer = "sliding_window(window=3)", model = {heads = 1}}
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(FILE)
    return tmp_path / "own.toml"


def test_a_file_is_trained_and_scored(path, tmp_path):
    done = run(app, ["train", str(path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "runs" / "own"
    assert "6 steps" in done.output
    assert "weft eval runs/own" in done.output
    trained = [row["step"] for row in read(folder / "metrics.jsonl") if row["kind"] == "train"]
    assert trained == [2, 4, 6]
    load(folder / "best")
    again = run(app, ["train", str(path)])
    assert again.exit_code == 0
    assert len(read(folder / "metrics.jsonl")) == len(set(map(str, read(folder / "metrics.jsonl"))))

    shown = run(app, ["eval", str(folder)]).output
    assert re.search(r"test +accuracy \d", shown)
    assert "on 30 items" in shown
    assert "majority class (nothing learned)" in shown
    assert "pair 0" in shown
    found = json.loads(run(app, ["eval", str(folder), "--split", "valid", "--json"]).output)
    best = json.loads((folder / "done.json").read_text())["best_score"]
    assert (found["split"], found["metric"], found["count"]) == ("valid", "accuracy", 20)
    assert found["score"] == best


def test_settings_are_changed_from_the_command_line(path, tmp_path):
    changes = ["--set", "training.steps=2", "--seed", "5"]
    for mixer in ("fnet", "near"):
        done = run(app, ["train", str(path), *changes, "--mixer", mixer, "--out", mixer])
        assert done.exit_code == 0, done.output
        found = read_experiment(tmp_path / mixer)
        assert (found.training.steps, found.training.seed) == (2, 5)
    assert (found.mixer, found.model.sizes()["heads"]) == ("sliding_window(window=3)", 1)


def test_another_run_in_the_same_folder_is_refused(path):
    run(app, ["train", str(path), "--out", "here", "--set", "training.steps=2"])
    done = run(app, ["train", str(path), "--out", "here", "--set", "training.steps=3"])
    assert done.exit_code == 1
    assert "holds another run" in done.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "none.toml"], "cannot read 'none.toml'"),
        (["train", "no_recipe"], "no recipe named 'no_recipe'"),
        (["train", "own.toml", "--set", "training.step=2"], "did you mean 'steps'"),
        (["eval", "."], "neither experiment.json"),
    ],
)
def test_a_wrong_call(path, args, message):
    done = run(app, args)
    assert done.exit_code == 1
    assert message in done.output


def test_fast_on_a_cpu_is_refused(path):
    refused = run(app, ["train", str(path), "--fast"])
    assert refused.exit_code == 1
    assert "fast is for a GPU" in refused.output + str(refused.exception)

"""`weft shift`: what a model's score loses where its sequences are moved."""

import json

import pytest
from typer.testing import CliRunner

from weft.cli import app

run = CliRunner().invoke
FILE = """
mixer = "full"
task = "key_value(pairs=2, symbols=8, values=2, train=64, valid=20, test=30)"
[model]
layers = 1
dim = 16
heads = 2
[training]
steps = 2
batch = 8
device = "cpu"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("shift") / "own.toml"
    path.write_text(FILE)
    done = run(app, ["train", str(path), "--out", str(path.parent / "run")])
    assert done.exit_code == 0, done.output
    return path.parent / "run"


def moved(folder, *args):
    done = run(app, ["shift", str(folder), "--by", "1,2", *args])
    assert done.exit_code == 0, done.output
    return done.output


def test_moves_are_scored_on_the_rows_asked_for(folder):
    said = moved(folder)
    assert said.startswith("accuracy on 30 documents of test\n")
    assert len(said.splitlines()) == 6  # as it is, and two places, each both ways
    assert "on 20 documents of valid" in moved(folder, "--split", "valid")
    assert "on 13 documents of test" in moved(folder, "--rows", "13")


def test_rows_of_json_are_those_of_the_table(folder):
    rows = [json.loads(line) for line in moved(folder, "--json", "--device", "cpu").splitlines()]
    assert [row["split"] for row in rows] == ["test"] * len(rows)
    told = run(app, ["eval", str(folder), "--json"]).output
    assert rows[0]["score"] == pytest.approx(json.loads(told)["score"])


@pytest.mark.parametrize("by", ["one", "", "-3"])
def test_places_that_are_none(folder, by):
    done = run(app, ["shift", str(folder), f"--by={by}"])
    assert done.exit_code in (1, 2)
    assert "Traceback" not in done.output

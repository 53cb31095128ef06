"""`weft tasks`: every task, and one task's data."""

import json

import pytest
from typer.testing import CliRunner

from weft.arena.tasks import TASKS
from weft.cli import app

SMALL = "listops(length=64, depth=5, arguments=4, train=200, valid=50, test=100)"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)


def run(*args):
    return CliRunner().invoke(app, ["tasks", *args])


def test_every_task_is_listed():
    done = run()
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line for line in done.output.splitlines() if line.split()}
    assert set(TASKS) <= set(rows)
    assert "own generator" in rows["listops"]
    assert "your files" in rows["text"]
    assert "2,000" in rows["listops"]


def test_json_holds_what_a_task_says():
    found = {row["name"]: row for row in json.loads(run("--json").output)}
    assert list(found) == list(TASKS)
    for name in ("listops", "key_value", "text", "pathx"):
        task, row = TASKS[name](), found[name]
        for key in ("kind", "length", "vocab", "classes", "metric"):
            assert row[key] == getattr(task, key), (name, key)
        assert TASKS.read({"name": name, **row["settings"]}) == task
    assert found["listops"]["missing"] is None
    assert "aclImdb" in found["text"]["missing"]


def test_one_task_is_described():
    done = run(SMALL)
    assert done.exit_code == 0, done.output
    task = TASKS.parse(SMALL)
    test = task.load("test")
    for name, score in task.baselines().items():
        assert f"{name}" in done.output
        assert f"{score:.4f}" in done.output
    assert task.source in done.output
    assert task.show(test.rows[0]) in " ".join(done.output.split())
    assert f"sample, test: class {test.labels[0]}" in done.output
    assert "MIN, MAX, MED, SM" in done.output


def test_one_task_as_json():
    found = json.loads(run(SMALL, "--json").output)
    task = TASKS.parse(SMALL)
    train = task.load("train")
    assert {split: sizes["rows"] for split, sizes in found["splits"].items()} == {
        "train": 200,
        "valid": 50,
        "test": 100,
    }
    assert found["splits"]["train"]["mean"] == train.rows.lengths.mean()
    assert found["splits"]["train"]["longest"] == max(train.rows.lengths)
    assert found["class_shares"] == [float((train.labels == c).mean()) for c in range(10)]
    assert found["baselines"] == task.baselines()


def test_a_language_task_has_no_classes(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"so it goes, \x1b[31m and so on. " * 200)
    done = run(f"language(folder='{tmp_path / 'text.txt'}', length=64)")
    assert done.exit_code == 0, done.output
    assert "bits per byte" in done.output
    assert "previous byte" in done.output
    assert "\x1b" not in done.output


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("listop", "did you mean 'listops'?"),
        ("listops(lenght=3)", "did you mean 'length'?"),
        ("text", "set WEFT_DATA"),
        ("table", "your file"),
        ("3", "a task is a spec such as `name(setting=1)`, a table or a config; got 3"),
    ],
)
def test_mistakes_end_with_a_message(spec, reason):
    done = run(spec)
    assert done.exit_code == 1
    assert reason in " ".join(done.output.split())

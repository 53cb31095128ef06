"""What a run folder holds is read, and what it does not hold becomes a sentence."""

import json

import pytest
from run_folders import cell, full_run, metrics, write_rows

from weft.errors import WeftError
from weft.report.read.fields import number
from weft.report.read.run_folder import read_run
from weft.rows import append


def test_everything_is_read(tmp_path):
    run = read_run(full_run(tmp_path, lengths=(512, 4096), seeds=2))
    assert len(run.rows) == 28
    assert len(run.failed) == 5
    assert len(run.curves) == 28
    assert {group["label"] for group in run.groups} == {row["label"] for row in run.done}
    assert [picture.label for picture in run.pictures] == ["full", "longformer", "bigbird"]
    assert len(run.published) == 2
    assert run.task == "listops"
    assert run.missing == []
    assert run.unfinished == []


def test_no_run(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(WeftError, match="is not a run folder"):
            read_run(folder)


def test_a_cell_that_was_tried_again_counts_once(tmp_path):
    rows = [
        cell("full", 512, 0, status="failed", reason="x"),
        cell("full", 512, 1),
        cell("full", 512),
    ]
    run = read_run(write_rows(tmp_path, rows, with_metrics=False))
    assert [(row["seed"], row["status"]) for row in run.rows] == [(1, "done"), (0, "done")]


def test_a_cell_without_a_row_is_unfinished(tmp_path):
    folder = write_rows(tmp_path, [cell("full", 512)])
    append(folder / "cells" / "fnet-512-0" / "metrics.jsonl", metrics(cell("fnet", 512))[:3])
    assert read_run(folder).unfinished == ["fnet-512-0"]


def test_a_broken_file_becomes_a_sentence(tmp_path):
    folder = full_run(tmp_path, lengths=(512,), seeds=1)
    (folder / "baselines.json").write_text("{")
    (folder / "spans.jsonl").write_text("[1]\n")
    (folder / "cells/full-512-0/metrics.jsonl").write_bytes(b"\xff\xfe\n")
    found = " ".join(read_run(folder).missing)
    for name in ("baselines.json", "spans.jsonl", "cells/full-512-0/metrics.jsonl"):
        assert f"{name} could not be read" in found


@pytest.mark.parametrize("place", ["../elsewhere", "/etc", "x" * 600, "cells/\0"])
def test_cells_lie_inside_the_run(tmp_path, place):
    outside = tmp_path / "elsewhere"
    append(outside / "metrics.jsonl", metrics(cell("full", 512)))
    row = cell("full", 512, cell=place)
    folder = write_rows(tmp_path / "run", [row], with_metrics=False)
    assert read_run(folder).curves == []


@pytest.mark.parametrize("value", [None, "0.5", True, float("nan"), float("inf"), []], ids=repr)
def test_what_is_no_number(value):
    assert number({"key": value}, "key") is None
    assert number({"key": 3}, "key") == 3.0


def test_impossible_numbers_are_left_out(tmp_path):
    row = json.dumps({**cell("full", 512), "peak_bytes": -4, "test_score": 1e300, "lr": 1e-300})
    (tmp_path / "rows.jsonl").write_text(
        row.replace('"batch": 32', '"batch": [1, {"a": 2}]') + "\n"
    )
    (found,) = read_run(tmp_path).rows
    assert (found["peak_bytes"], found["test_score"], found["lr"]) == (None, None, 0)
    assert found["batch"] == '[1, {"a": 2}]'


def test_a_training_folder_is_a_run_of_one(tmp_path):
    append(tmp_path / "metrics.jsonl", metrics(cell("full", 512)))
    (tmp_path / "settings.json").write_text(json.dumps({"settings": {"lr": 0.1}, "stages": []}))
    run = read_run(tmp_path)
    assert run.failed[0]["status"] == "unfinished"
    outcome = {"status": "done", "score": 0.4, "best_score": 0.5, "model": "best", "seconds": 9.0}
    (tmp_path / "done.json").write_text(json.dumps(outcome))
    run = read_run(tmp_path)
    assert (run.done[0]["valid_score"], run.done[0]["train_seconds"]) == (0.5, 9.0)
    assert len(run.curves[0].valid) == 10
    assert run.of_training


@pytest.mark.parametrize(
    ("columns", "title"),
    [
        ({"text": "body", "label": "stars"}, "stars from body of file.csv"),
        ({"text": "one", "second": "two", "label": "same"}, "same from one and two of file.csv"),
        ({"id": "client", "label": "default"}, "default of file.csv"),
    ],
)
def test_a_training_is_titled_by_its_columns(tmp_path, columns, title):
    append(tmp_path / "metrics.jsonl", metrics(cell("full", 512)))
    (tmp_path / "settings.json").write_text(json.dumps({"settings": {"lr": 0.1}, "stages": []}))
    (tmp_path / "best").mkdir()
    usage = {"task": "table", "data": "file.csv (sha256 01), 9 rows", "columns": columns}
    (tmp_path / "best" / "usage.json").write_text(json.dumps(usage))
    assert read_run(tmp_path).first("task_title") == title


def test_pictures_without_an_index(tmp_path):
    folder = full_run(tmp_path, lengths=(512,), seeds=1)
    (folder / "pictures/pictures.json").unlink()
    assert [picture.label for picture in read_run(folder).pictures] == ["00-0", "01-0", "02-0"]


def test_a_large_picture_is_left_out(tmp_path):
    folder = full_run(tmp_path, lengths=(512,), seeds=1)
    (folder / "pictures/00-0.png").write_bytes(bytes(5 << 20))
    run = read_run(folder)
    assert len(run.pictures) == 2
    assert "00-0.png is too large" in run.missing[-1]

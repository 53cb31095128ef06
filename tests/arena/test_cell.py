"""One cell: it leaves a result whatever happens, or none if it has to go on another time."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from weft.arena import cell as cells
from weft.arena.grid import plugged
from weft.arena.measure import is_out_of_memory, reason_of
from weft.arena.model import ModelSetting
from weft.arena.settings import Experiment
from weft.errors import Unsupported, WeftError
from weft.mixers import pattern_mixer
from weft.rows import read
from weft.training.settings import Settings

TASK = "key_value(pairs=2, symbols=8, values=2, train=64, valid=20, test=30)"
OWN = Experiment(
    task=TASK,
    mixer="sliding_window(window=3)",
    model=ModelSetting(layers=1, dim=16, heads=2),
    training=Settings(steps=4, batch=8, device="cpu", evaluate_every=2),
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "_end_with_parent", lambda: None)

    def start(own=OWN, **given):
        job = {
            "experiment": own.tables(),
            "dense": replace(OWN, mixer="full").tables(),
            "plugins": [],
            "span_samples": 3,
            "memory_limit": None,
            **given,
        }
        (tmp_path / "job.json").write_text(json.dumps(job))
        status = cells.main(tmp_path)
        path = tmp_path / "result.json"
        return status, json.loads(path.read_text()) if path.exists() else None

    return start


def test_a_cell_is_trained_and_measured(run, tmp_path):
    status, result = run()
    assert (status, result["status"], result["reason"]) == (0, "done", None)
    found = result["measured"]
    assert (found["steps"], found["parameters_ratio"]) == (4, 1.0)
    for key in ("test_score", "valid_score", "train_score", "flops_per_token", "peak_bytes"):
        assert found[key] is not None
    groups = read(tmp_path / "groups.jsonl")
    assert sum(row["count"] for row in groups) == 30
    assert sum(row["right"] for row in groups) / 30 == pytest.approx(found["test_score"])
    spans = [row["span"] for row in read(tmp_path / "spans.jsonl")]
    assert len(spans) == 2
    assert found["span"] == pytest.approx(sum(spans) / 2)
    assert {"torch", "commit", "device_name", "threads", "date"} <= set(found)


def test_a_trained_cell_is_not_trained_again(run, tmp_path, monkeypatch):
    run()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "result.json").unlink()
    assert run()[1]["status"] == "done"
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_unfused_attention_learns_the_same(run, tmp_path):
    def losses(own):
        for name in ("settings.json", "done.json", "metrics.jsonl"):
            (tmp_path / name).unlink(missing_ok=True)
        assert run(own)[1]["status"] == "done"
        return [row["loss"] for row in read(tmp_path / "metrics.jsonl")]

    dense = replace(OWN, mixer="full")
    before = pattern_mixer.attend
    assert losses(replace(dense, unfused=True)) == pytest.approx(losses(dense), rel=1e-4)
    assert pattern_mixer.attend is before


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Unsupported("not this one"), "unsupported", "Unsupported: not this one"),
        (MemoryError(), "out of memory", "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out of memory", None),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory", None),
        (RuntimeError("two\n  lines"), "failed", "RuntimeError: two lines"),
        (WeftError("x" * 999), "failed", "WeftError: " + "x" * 299 + "…"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_an_error_becomes_a_result(run, monkeypatch, capsys, error, status, reason):
    def fail(*_):
        raise error

    monkeypatch.setattr(cells, "train", fail)
    code, result = run()
    assert (code, result["status"]) == (0, status)
    assert result["reason"] == (reason or reason_of(error))
    assert result["measured"]["parameters"] > 0, "what was known before it failed is kept"
    assert "Traceback" in capsys.readouterr().err


def test_a_mechanism_that_cannot_is_unsupported(run):
    own = replace(OWN, mixer="linear_transformer", model=replace(OWN.model, positions="alibi"))
    _, result = run(own)
    assert result["status"] == "unsupported"
    assert "linear_transformer" in result["reason"]


@pytest.mark.parametrize("how", ["saved", "at once"])
def test_asked_to_stop_it_leaves_no_result(run, monkeypatch, how):
    def stop(*_):
        if how == "at once":
            raise KeyboardInterrupt
        return SimpleNamespace(status="interrupted")

    monkeypatch.setattr(cells, "train", stop)
    assert run() == (cells.INTERRUPTED, None)


def test_memory_is_not_what_any_error_is_about():
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_plugin_that_is_not_there():
    with pytest.raises(WeftError, match="cannot import the plugin 'no_such_module'"):
        plugged(["no_such_module"])


def test_cells_of_one_process_run_one_after_another(tmp_path, monkeypatch):
    """Until one was asked to stop: those behind it are left for another time."""
    ran = []

    def main(folder):
        ran.append(folder.name)
        return {"stopped": cells.INTERRUPTED}.get(folder.name, 0)

    monkeypatch.setattr(cells, "main", main)
    monkeypatch.setattr(cells, "_end_with_parent", lambda: None)
    assert cells.every([tmp_path / "a", tmp_path / "b"]) == 0
    assert cells.every([tmp_path / "c", tmp_path / "stopped", tmp_path / "d"]) == cells.INTERRUPTED
    assert ran == ["a", "b", "c", "stopped"]

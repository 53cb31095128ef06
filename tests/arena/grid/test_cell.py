"""One cell: it leaves a result whatever happens, or none if it has to go on another time."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from weft.arena.experiment.model import Model
from weft.arena.experiment.settings import Experiment, modified, with_mixer
from weft.arena.grid import cell as cells
from weft.arena.grid.measure import is_out_of_memory, reason_of
from weft.config import changed
from weft.errors import Unsupported, WeftError
from weft.mixers.base import under_pattern
from weft.plugins import load_plugins
from weft.rows import read
from weft.training.settings import TrainingSettings

TASK = "key_value(pairs=2, symbols=8, values=2, train=64, valid=20, test=30)"
SMALL = {"layers": 1, "dim": 16, "heads": 2, "mixer": "sliding_window(window=3)"}
OWN = Experiment(
    task=TASK,
    model=changed(Model(), SMALL),
    training=TrainingSettings(steps=4, batch=8, device="cpu", evaluate_every=2),
)


@pytest.fixture
def run(tmp_path):
    def start(own=OWN, **given):
        job = {
            "experiment": own.tables(),
            "dense": with_mixer(OWN, "full").tables(),
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

    dense = with_mixer(OWN, "full")
    before = under_pattern.attend
    assert losses(replace(dense, unfused=True)) == pytest.approx(losses(dense), rel=1e-4)
    assert under_pattern.attend is before


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
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cells, "train", fail)
    code, result = run()
    assert (code, result["status"]) == (0, status)
    assert result["reason"] == (reason or reason_of(error))
    assert result["measured"]["parameters"] > 0, "what was known before it failed is kept"
    assert "Traceback" in capsys.readouterr().err


def test_a_mechanism_that_cannot_is_unsupported(run):
    given = {"mixer": "linear_transformer", "model": {"frame": {"positions": "alibi"}}}
    own = modified(OWN, given)
    _, result = run(own)
    assert result["status"] == "unsupported"
    assert "linear_transformer" in result["reason"]


@pytest.mark.parametrize("how", ["saved", "at once"])
def test_asked_to_stop_it_leaves_no_result(run, monkeypatch, how):
    def stop(*_, **__):
        if how == "at once":
            raise KeyboardInterrupt
        return SimpleNamespace(status="interrupted")

    monkeypatch.setattr(cells, "train", stop)
    assert run() == (cells.INTERRUPTED, None)


def test_memory_is_not_what_any_error_is_about():
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_plugin_that_is_not_there():
    with pytest.raises(WeftError, match="cannot import the plug-in 'no_such_module'"):
        load_plugins(["no_such_module"])


def test_cells_of_one_process_run_one_after_another(tmp_path, monkeypatch):
    """Until one was asked to stop: those behind it are left for another time."""
    ran = []

    def main(folder):
        ran.append(folder.name)
        return {"stopped": cells.INTERRUPTED}.get(folder.name, 0)

    monkeypatch.setattr(cells, "main", main)
    monkeypatch.setattr(cells, "ending_with_parent", nullcontext)
    assert cells.every([tmp_path / "a", tmp_path / "b"]) == 0
    assert cells.every([tmp_path / "c", tmp_path / "stopped", tmp_path / "d"]) == cells.INTERRUPTED
    assert ran == ["a", "b", "c", "stopped"]


# With a folder, the cell hangs until it is asked to stop; without, there is nothing to do.
HANGING = """
import sys, time
from weft.arena.grid import cell
cell.main = lambda folder: time.sleep(1000)
try:
    sys.exit(cell.every(sys.argv[1:]))
except KeyboardInterrupt:
    sys.exit("asked to stop")
"""


def test_a_cell_that_is_done_ends_in_silence():
    """While its input is still open: a thread that read it ended the process in a fatal error."""
    command = [sys.executable, "-c", HANGING]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, **pipes, text=True) as process:
        said = process.stdout.read(), process.stderr.read()
        assert (process.wait(), *said) == (0, "", "")


def test_a_cell_whose_parent_is_gone_is_asked_to_stop():
    command = [sys.executable, "-c", HANGING, "folder"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdin.close()
    assert process.stderr.read().strip() == "asked to stop"
    assert process.wait() == 1
    process.stderr.close()


LISTENING = """
import signal, sys, time
from weft.arena.grid import cell
with cell.ending_with_parent():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("asked to save", flush=True)
"""


def _deaf():
    """As under a worker of Ray, and in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def test_a_cell_hears_what_its_parent_does_not():
    command = [sys.executable, "-c", LISTENING]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=_deaf
    )
    assert process.stdout.readline().strip() == "ready"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0].strip() == "asked to save"


def test_what_a_parent_says_is_no_end():
    read, write = os.pipe()
    over, end = os.pipe()
    os.write(write, b"x")
    os.close(end)
    cells._watch(read, over)  # returns because the work is over
    for pipe in (read, write, over):
        os.close(pipe)
    assert signal.getsignal(signal.SIGTERM) is not None

"""Trackers: the same numbers as metrics.jsonl, one protocol; the way out without a package."""

import sys
import types

import pytest
from tiny_runs import Crash, CrashAt, one_stage

from weft import rows
from weft.errors import WeftError
from weft.training import train
from weft.training.trackers import PROJECT, TRACKERS

written = []


class Writer:
    """What torch.utils.tensorboard has."""

    def __init__(self, folder, purge_step):
        written.append(("open", folder, purge_step))

    def add_scalar(self, name, value, step):
        written.append((name, value, step))

    def close(self):
        written.append(("close",))


class Run:
    """What `init` of trackio and wandb gives."""

    def __init__(self, **given):
        written.append(("open", given))

    def log(self, values, step):
        written.extend((name, value, step) for name, value in values.items())

    def finish(self):
        written.append(("close",))


@pytest.fixture(autouse=True)
def _fresh():
    written.clear()


@pytest.fixture
def fakes(monkeypatch):
    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    for name in ("trackio", "wandb"):
        module = types.ModuleType(name)
        module.init = Run
        monkeypatch.setitem(sys.modules, name, module)


def logged(folder):
    return {
        (f"{row['kind']}/{name}", value, row["step"])
        for row in rows.read(folder / "metrics.jsonl")
        for name, value in row.items()
        if name != "step" and isinstance(value, float | int)
    }


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_gets_the_numbers_of_the_rows(tmp_path, fakes, name):
    train(one_stage(trackers=(name,)), tmp_path)
    assert written[0][0] == "open"
    assert written[-1] == ("close",)
    assert set(written[1:-1]) == logged(tmp_path)
    assert {"train/loss", "train/lr", "valid/score"} <= {entry[0] for entry in written}


def test_a_hosted_run_goes_on_under_its_identity(tmp_path, fakes):
    with pytest.raises(Crash):
        train(one_stage(trackers=("wandb", "trackio")), tmp_path, CrashAt("step", 3))
    first = [entry[1] for entry in written if entry[0] == "open"]
    written.clear()
    train(one_stage(trackers=("wandb", "trackio")), tmp_path)
    again = [entry[1] for entry in written if entry[0] == "open"]
    for one in (*first, *again):
        assert (one["project"], one["resume"], one["name"]) == (PROJECT, "allow", tmp_path.name)
        assert one["config"]["settings"]["batch"]
    assert first[0]["id"] == again[0]["id"]


def test_tensorboard_hides_what_came_after_the_checkpoint(tmp_path, fakes):
    with pytest.raises(Crash):
        train(one_stage(tensorboard=True), tmp_path, CrashAt("step", 3))
    assert written[0] == ("open", str(tmp_path / "tensorboard"), 1)
    assert set(written[1:]) == logged(tmp_path)
    written.clear()
    train(one_stage(tensorboard=True), tmp_path)
    assert written[0][2] == 3  # what was written after step 2 is hidden


@pytest.mark.parametrize("name", TRACKERS)
def test_without_the_package_the_way_out_is_said(tmp_path, monkeypatch, name):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(WeftError, match=rf"pip install {name}.*metrics\.jsonl"):
        train(one_stage(trackers=(name,)), tmp_path)


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(WeftError, match="no tracker named 'wand'; did you mean 'wandb'"):
        train(one_stage(trackers=("wand",)), tmp_path)

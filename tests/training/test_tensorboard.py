"""TensorBoard: scalars where the package is, the way out where it is not."""

import sys
import types

import pytest
from tiny_runs import Crash, CrashAt, one_stage

from weft import rows
from weft.errors import WeftError
from weft.training import train

written = []


class Writer:
    def __init__(self, folder, purge_step):
        written.append(("open", folder, purge_step))

    def add_scalar(self, name, value, step):
        written.append((name, value, step))

    def close(self):
        written.append(("close",))


@pytest.fixture(autouse=True)
def _fresh():
    written.clear()


def test_scalars_are_written(tmp_path, monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    run = one_stage(tensorboard=True)
    with pytest.raises(Crash):
        train(run, tmp_path, CrashAt("step", 3))
    assert written[0] == ("open", str(tmp_path / "tensorboard"), 1)
    assert {"train/loss", "train/lr", "valid/score"} <= {entry[0] for entry in written}
    logged = {
        (f"{row['kind']}/{name}", value, row["step"])
        for row in rows.read(tmp_path / "metrics.jsonl")
        for name, value in row.items()
        if name != "step" and isinstance(value, float | int)
    }
    assert set(written[1:]) == logged
    assert {entry[2] for entry in written[1:]} == {2, 3}
    written.clear()
    train(run, tmp_path)
    assert written[0][2] == 3  # what was written after step 2 is hidden
    assert written[-1] == ("close",)


def test_without_the_package_the_way_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(WeftError, match=r"pip install tensorboard.*metrics\.jsonl"):
        train(one_stage(tensorboard=True), tmp_path)

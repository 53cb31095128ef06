"""The benchmark of expert layers runs at a tiny size, checks values, and finds a wrong layer."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "cases" / "moe.py"
TINY = ["--device", "cpu", "--tokens", "64", "--dim", "16", "--hidden", "32", "--experts", "4"]


@pytest.fixture(scope="module")
def moe():
    spec = importlib.util.spec_from_file_location("moe_case", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_and_writes_rows(moe, dtype, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    moe.main([*TINY, "--dtype", dtype, "--rounds", "2", "--eager", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    timed = {row["case"]: row for row in rows if "error" not in row}
    assert {"dense", "switch capacity 1.25", "switch capacity none", "moe top 2"} <= set(timed)
    assert timed["dense"]["ratio"] == timed["dense swiglu"]["ratio"] == 1.0
    for row in rows:
        assert row["case"].startswith("Transformers") or "error" not in row
        assert (row["tokens"], row["experts"], row["dtype"]) == (64, 4, dtype)


@pytest.mark.parametrize("capacity", [0.5, 1.25, None])
def test_a_wrong_layer_has_no_number(moe, capacity):
    size = moe.Size(64, 16, 32, 4, torch.float32, "cpu")
    config = moe.Switch(experts=4, activation="relu", hidden=32, capacity=capacity)
    module = moe.built(config, size)
    assert moe.check(module, size) is None
    module.experts.activation = torch.nn.functional.gelu
    assert "differs from its equation" in moe.check(module, size)


def test_a_layer_that_drops_too_much_has_no_number(moe):
    size = moe.Size(64, 16, 32, 4, torch.float32, "cpu")
    module = moe.built(moe.Switch(experts=4, activation="relu", hidden=32), size)
    forward = module.experts.forward

    def stingy(*args, capacity, **given):
        return forward(*args, capacity=capacity and capacity - 5, **given)

    module.experts.forward = stingy
    assert "tokens have no room" in moe.check(module, size)

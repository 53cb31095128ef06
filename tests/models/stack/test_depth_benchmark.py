"""The benchmark of depth rules, small: rows of shares and ratios, and a gate that bites."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from weft.rows import read

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks/cases/depth.py"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    found = importlib.util.spec_from_file_location("depth_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_writes_a_row_for_each_case(script, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    small = ["--rounds", "1", "--dim", "8", "--length", "6", "--batch", "1"]
    monkeypatch.setattr(sys, "argv", ["depth.py", "--out", str(out), *small])
    script.main()
    rows = {row["case"]: row for row in read(out)}
    assert len(rows) == len(capsys.readouterr().out.splitlines()) == 10
    assert rows["every other layer pruned"]["expected"] == 0.5
    assert rows["shared=1"]["parameters"] < 0.1
    assert all(row["ratio"] > 0 and row["torch"] for row in rows.values())


def test_halting_that_is_not_as_stated_has_no_number(script, monkeypatch):
    wrong = script.universal
    monkeypatch.setattr(script, "universal", lambda dim, steps: wrong(dim, steps + 1))
    with pytest.raises(SystemExit, match="tokens took"):
        script.evaluations(8, torch.zeros(1, 5, dtype=torch.long))

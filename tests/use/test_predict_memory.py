"""Memory does not grow with the number of documents: `weft predict` in a process of its own."""

import argparse
import importlib.util
from pathlib import Path

import pytest

CASE = Path(__file__).parents[2] / "benchmarks" / "cases" / "predict.py"


@pytest.mark.long
def test_many_documents_take_no_more_memory_than_few(tmp_path):
    spec = importlib.util.spec_from_file_location("predict_case", CASE)
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    found = {}
    for count in (1100, 5100):  # chunks are of 1,024
        folder = tmp_path / str(count)
        folder.mkdir()
        given = {"mixer": "sliding_window(window=17)", "layers": 1, "dim": 8, "heads": 1}
        args = argparse.Namespace(documents=count, bytes=2000, seconds=None, **given)
        found[count] = case.measured(folder, args)
    assert [row["answered"] for row in found.values()] == [1100, 5100]
    assert found[5100]["peak_bytes"] < 1 << 30
    assert found[5100]["peak_bytes"] < found[1100]["peak_bytes"] + (24 << 20)

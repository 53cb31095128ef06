"""The script that runs Long Range Arena asks for the released settings and loses no row."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from weft.arena import fast
from weft.rows import append

PATH = Path(__file__).parents[2] / "benchmarks" / "cases" / "lra_accuracy.py"
SPEC = importlib.util.spec_from_file_location("lra_accuracy", PATH)
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)

SIZES = {  # of the released files: steps, batch, layers, width, length
    "listops": (5_000, 32, 4, 512, 2_000),
    "text": (20_000, 32, 4, 256, 1_000),
    "image": (35_000, 256, 1, 128, 1_024),
}


@pytest.mark.parametrize("task", SIZES)
def test_cells_have_the_released_sizes(task, tmp_path, monkeypatch):
    monkeypatch.setattr(fast, "device_named", torch.device)
    for folder in ("imdb", "cifar10"):
        (tmp_path / folder).mkdir()
    grid = SCRIPT.grid_of(task, SCRIPT.MIXERS, str(tmp_path), ["training.device=cuda"])
    cells = {cell.label: cell for cell in grid.cells()}
    assert list(cells) == SCRIPT.MIXERS.split(",")
    dense = cells["full"].experiment
    sizes = (dense.training.steps, dense.training.batch, dense.model.layers, dense.model.dim)
    assert (*sizes, cells["full"].length) == SIZES[task]
    assert dense.training.graph
    assert dense.model.trimmed
    whole = cells["longformer"].experiment.model
    assert whole.trimmed == (whole.pool == "first"), "a mean reads every row"
    chunk = {"listops": 201, "text": 101, "image": 103}[task]
    assert f"chunk={chunk}" in cells["reformer"].experiment.mixer


def test_a_run_without_dense_attention_compares_nothing_with_it():
    """The grid takes some contender for its base then, which the rows must not call dense."""
    base = {"label": "longformer", "dense": True, "parameters_ratio": 1.0, "target": 0.4}
    other = {"label": "reformer", "dense": False, "parameters_ratio": 0.4, "target": 0.4}
    for row in SCRIPT.uncompared([base, other]):
        assert not row["dense"]
        assert row["parameters_ratio"] is row["target"] is row["seconds_to_target"] is None
    beside = [{**base, "label": "full"}, other]
    assert SCRIPT.uncompared(beside) == beside


def test_rows_and_curves_of_all_tasks_are_gathered(tmp_path):
    for task, label in (("text", "full"), ("image", "fnet")):
        row = {"task": task, "label": label, "seed": 0, "cell": f"cells/{label}", "test_score": 0.5}
        (tmp_path / task / row["cell"]).mkdir(parents=True)
        append(tmp_path / task / "rows.jsonl", [row])
        points = [
            {"kind": kind, "step": 7, "score": 0.4, "loss": 1.0} for kind in ("train", "valid")
        ]
        append(tmp_path / task / row["cell"] / "metrics.jsonl", points)
    (tmp_path / "text" / "baselines.json").write_text('{"majority class": 0.5}')
    SCRIPT.gather(tmp_path, ["text", "image", "listops"])
    rows, curves, rules = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("rows", "curves", "baselines")
    )
    assert rules == [{"task": "text", "rule": "majority class", "score": 0.5}]
    assert [row["label"] for row in rows] == ["full", "fnet"]
    point = {"seed": 0, "step": 7, "score": 0.4, "loss": 1.0}
    assert curves == [
        {"task": "text", "label": "full", **point},
        {"task": "image", "label": "fnet", **point},
    ]

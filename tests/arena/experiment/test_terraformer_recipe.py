"""The recipe of sparse byte models: equal parameters, and it trains on a CPU at a tiny size."""

import pytest
import torch
from typer.testing import CliRunner

from weft.arena.experiment.runs import model_of
from weft.arena.experiment.settings import read_settings
from weft.cli import app
from weft.feedforward import Sparse
from weft.models import load
from weft.rows import read

run = CliRunner().invoke
LABELS = ("dense", "sparse_16", "sparse_64", "terraformer_64")


def parameters(experiment):
    with torch.device("meta"):
        return sum(p.numel() for p in model_of(experiment).build().parameters())


def test_contenders_have_equal_parameters_and_see_the_same():
    recipe = read_settings("terraformer_bytes")
    assert tuple(recipe.mixers) == LABELS
    counts = {label: parameters(one) for label, one in recipe.mixers.items()}
    assert 13e6 < counts["dense"] < 16e6
    for label, count in counts.items():
        assert abs(count - counts["dense"]) < 0.02 * counts["dense"], label
    assert len({one.training for one in recipe.mixers.values()}) == 1
    blocks = {}
    for label, one in recipe.mixers.items():
        feedforward = model_of(one).trunk.stack.feedforward
        blocks[label] = feedforward.block if isinstance(feedforward, Sparse) else None
    assert blocks == dict(zip(LABELS, (None, 16, 64, 64), strict=True))


@pytest.mark.parametrize("label", LABELS)
def test_trains_on_a_cpu(label, tmp_path):
    text = tmp_path / "text.txt"
    numbers = torch.randint(97, 123, (20_000,), generator=torch.Generator().manual_seed(0))
    text.write_bytes(bytes(numbers.tolist()))
    changes = {
        "task": f"language(length=32, folder='{text}')",
        "model.layers": 1,
        "model.dim": 32,
        "model.heads": 2,
        "training.steps": 20,
        "training.batch": 4,
        "training.warmup": 1,
        "training.lr": 1e-2,
        "training.precision": "float32",
        "training.compile": "false",
        "training.log_every": 10,
        "training.evaluate_every": 20,
    }
    given = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    folder = tmp_path / "run"
    out = ["--mixer", label, "--device", "cpu", "--out", str(folder)]
    done = run(app, ["train", "terraformer_bytes", *given, *out])
    assert done.exit_code == 0, done.output
    losses = [row["loss"] for row in read(folder / "metrics.jsonl") if row["kind"] == "train"]
    assert losses[-1] < losses[0]
    model = load(folder / "best")
    assert model.generate(torch.tensor([[97, 98]]), 5).shape == (1, 7)

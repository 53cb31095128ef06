"""What rounding costs: measured on a text, part by part."""

import json

import pytest
import torch
import torch.nn.functional as F
from native_models import VOCAB, small_model, sparse_model
from typer.testing import CliRunner

from weft import native
from weft.cli import app
from weft.errors import WeftError
from weft.models import Decoder, LanguageModel, save
from weft.native import WeightPrecision
from weft.native.precision import quantise
from weft.native.quality import quality

pytestmark = pytest.mark.skipif(native.available() is not None, reason="no C++ compiler")


def test_int8_rows_are_within_half_a_step():
    rows = torch.randn(5, 40) * torch.tensor([1e-3, 1, 1e3, 0, 1])[:, None]
    numbers, scales = quantise(rows)
    assert numbers.dtype == torch.int8
    assert (
        (numbers.double() * scales[:, None].double() - rows).abs() <= scales[:, None] / 1.99
    ).all()
    assert not numbers[3].any()


def test_losses_are_those_of_torch_with_rounded_weights():
    model = sparse_model(positions=None)
    ids = torch.randint(VOCAB, (130,)).tolist()
    rows = {
        row.part: row for row in quality(model, ids, WeightPrecision(weights="int8"), window=32)
    }
    assert list(rows) == [
        *("nothing", "embedding", "attention", "controller", "feedforward", "output", "all"),
    ]
    windows = torch.tensor(ids[:128]).view(4, 32)
    for part, name in (("nothing", "float32"), ("all", "int8")):
        torch_model = native.compile(model, dtype=name).as_torch()
        with torch.no_grad():
            scores = torch_model(windows)[:, :-1]
        want = F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten()).item()
        assert rows[part].loss == pytest.approx(want, rel=1e-5)
    assert rows["nothing"].change == 0
    assert all(rows[part].change != 0 for part in rows if part != "nothing")
    assert rows["all"].bytes < rows["feedforward"].bytes < rows["nothing"].bytes


def test_a_short_text_is_refused():
    with pytest.raises(WeftError, match="fewer than a window"):
        quality(small_model(), [1, 2, 3], WeightPrecision(weights="int8"), window=8)


@pytest.fixture
def saved(tmp_path):
    from weft.layers.embedding import Embedding
    from weft.mixers import Frame
    from weft.models import Stack

    trunk = Decoder(
        embedding=Embedding(vocab=256), stack=Stack(frame=Frame(dim=16, heads=2), order="sf")
    )
    return save(LanguageModel(trunk=trunk).build(), tmp_path / "saved")


def test_the_command_writes_and_measures(saved, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was a bright cold day in April. " * 4)
    command = ["quantise", str(saved), "--out", str(tmp_path / "out"), "--cache", "bfloat16"]
    command += ["--part", "0.attention.qkv=float32", "--text", str(text), "--window", "32"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert [row["part"] for row in rows][-2:] == ["cache", "all"]
    parts = native.load(tmp_path / "out").parts()
    assert parts["0.attention.qkv"]["dtype"] == "float32"
    assert parts["1.feedforward.hidden"]["dtype"] == "int8"
    shown = CliRunner().invoke(app, command)
    assert "feedforward" in shown.output
    assert "MB" in shown.output


def test_a_wrong_part_is_refused(saved, tmp_path):
    command = ["quantise", str(saved), "--out", str(tmp_path / "out"), "--part", "qkv"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "PATTERN=PRECISION" in done.output

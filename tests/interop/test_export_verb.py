"""`weft export hf` on the command line."""

from citizen_models import built
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

import weft
from weft.cli import app


def run(*args):
    return CliRunner().invoke(app, ["export", "hf", *map(str, args)])


def test_a_folder_that_transformers_reads(tmp_path):
    weft.save(built("ForSequenceClassification"), tmp_path / "saved")
    done = run(tmp_path / "saved", tmp_path / "out", "--shard", "20KB")
    assert done.exit_code == 0, done.output
    assert "README.md" in done.output
    assert "model.safetensors.index.json" in done.output
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "bad", 1: "good", 2: "mixed"}


def test_what_cannot_be_is_said(tmp_path):
    done = run(tmp_path / "nothing", tmp_path / "out")
    assert done.exit_code == 1
    assert "there is no folder" in done.output
    assert not (tmp_path / "out").exists()
    weft.save(built("ForSequenceClassification"), tmp_path / "saved")
    with (tmp_path / "saved/model.safetensors").open("rb+") as file:
        file.truncate(5000)
    done = run(tmp_path / "saved", tmp_path / "out")
    assert done.exit_code == 1
    assert "is it cut short?" in done.output

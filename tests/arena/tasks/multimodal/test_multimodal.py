"""Rows of several kinds, from a table to a trained model and its predictions, from settings."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.arena.experiment.runs import model_of, run_of
from weft.arena.experiment.settings import experiment
from weft.arena.tasks import TASKS
from weft.arena.tasks.multimodal.task import Multimodal
from weft.cli import app
from weft.errors import WeftError
from weft.pictures.drawing import write_png
from weft.sound.files import write_wav
from weft.training import train

run = CliRunner().invoke
ENCODERS = [
    {"modality": "tone", "patch": 20, "bands": 4},
    {"modality": "card", "patch": 2, "bands": 2},
]


def sound(row):
    pitch = 500 if row % 2 else 1500
    phase = np.random.default_rng(row).random()
    return 0.3 * np.sin(2 * np.pi * (pitch * np.arange(200) / 8000 + phase))


def picture(row):
    shade = 90 * (row // 2 % 2)
    return np.random.default_rng(row).integers(shade, shade + 150, (4, 4, 3)).astype(np.uint8)


def kind(row):
    """Neither the sound nor the picture alone tells it."""
    return "same" if row % 2 == row // 2 % 2 else "other"


def made(folder, count=40, changes=None):
    """A table whose rows need both of their files; `changes` by (row, column)."""
    lines = []
    for row in range(count):
        write_wav(folder / f"{row}.wav", sound(row), 8_000)
        write_png(folder / f"{row}.png", picture(row))
        cells = {
            "tone": f"{row}.wav",
            "card": f"{row}.png",
            "note": f"row {row}",
            "weight": f"{row}.5",
            "kind": kind(row),
            "part": ("train", "valid", "test", "train")[row % 8 // 2],
        }
        cells |= {name: cell for (at, name), cell in (changes or {}).items() if at == row}
        lines.append(",".join(cells.values()))
    table = folder / "cards.csv"
    table.write_text("\n".join(["tone,card,note,weight,kind,part", *lines]))
    return table


def task(table, **settings):
    own = {"sounds": ("tone",), "pictures": ("card",), "texts": ("note",), "numbers": ("weight",)}
    more = {"samples": 200, "letters": 8, "label": "kind"}
    return Multimodal(data=str(table), **{**own, **more, **settings})


def test_values_are_those_of_the_files(tmp_path):
    table = made(tmp_path, changes={(4, "tone"): "", (8, "weight"): "", (12, "note"): ""})
    found = task(table, split="part")
    rows = found.load("train")
    train_rows = [row for row in range(40) if row % 8 // 2 in (0, 3)]
    weights = np.array([row + 0.5 for row in train_rows if row != 8])
    for place, row in enumerate(train_rows):
        values = rows.values[place]
        tone = np.rint(sound(row) * 32768)
        wanted = (tone - tone.mean()) / tone.std()
        assert np.abs(values[:200] - wanted).max() < 1e-4
        pixels = picture(row).ravel() / 127.5 - 1
        np.testing.assert_allclose(values[200:248], pixels, atol=1e-6)
        assert (rows.classes[place] == 1) == (kind(row) == "same")
        letters = values[248:256]
        known = letters[~np.isnan(letters)].astype(np.uint8).tobytes().decode()
        assert known == ("" if row == 12 else f"row {row}")
        number = (row + 0.5 - weights.mean()) / weights.std()
        assert (np.isnan(values[256]) and row == 8) or abs(values[256] - number) < 1e-5
    lacking = task(table).gathered.values[4]
    assert np.isnan(lacking[:200]).all()
    assert not np.isnan(lacking[200:248]).any()
    assert found.inputs["modalities"][3].name == "numbers"
    batch = rows.batch(np.array([0, 4]))
    assert torch.isfinite(batch.x).all()
    assert not batch.valid[0, 254:256].any()
    assert "note: row 1" in found.show(rows[1])


def settings(table, **training):
    trunk = {"name": "multimodal_perceiver", "latents": 8, "layers": 1, "encoders": ENCODERS}
    trunk["frame"] = {"dim": 32, "heads": 4}
    own = {"steps": 80, "batch": 20, "lr": 5e-3, "warmup": 5, "device": "cpu"}
    numbers = {"name": "multimodal", "data": str(table), "label": "kind", "split": "part"}
    kinds = {"sounds": ["tone"], "pictures": ["card"], "samples": 200}
    return experiment(
        {
            "task": {**numbers, **kinds},
            "model": {"trunk": trunk},
            "training": {**own, **training},
        }
    )


def test_from_settings_to_predictions_that_need_both(tmp_path):
    """Seen to fail: with the sound's latents alone a half is right."""
    (tmp_path / "data").mkdir()
    table = made(tmp_path / "data", 80)
    own = settings(table)
    outcome = train(run_of(own), tmp_path / "run")
    assert outcome.best_score == 1.0
    model = weft.load(tmp_path / "run")
    rows = [
        {"tone": str(table.parent / f"{row}.wav"), "card": str(table.parent / f"{row}.png")}
        for row in range(20)
    ]
    found = model.predict(rows)
    assert np.mean([one == kind(row) for row, one in enumerate(found)]) > 0.9
    shares = model.predict({**rows[0], "tone": ""}, proba=True)  # what lacks is not read
    assert set(shares) == {"same", "other"}
    # From the command line, paths are relative to the table; bad rows are said and kept.
    bad = table.parent / "new.csv"
    bad.write_text("tone,card,kind\n0.wav,0.png,same\n1.wav,none.png,other\n,,same\n")
    command = ["predict", str(tmp_path / "run"), str(bad), "--out", str(tmp_path / "out.jsonl")]
    done = run(app, [*command, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in written] == [model.predict(rows[0]), None, None]
    assert "(a file with tone, card)" in run(app, ["show", str(tmp_path / "run")]).output
    assert "line 3: card: there is no picture" in done.output
    assert "line 4: nothing in tone, card" in done.output


def test_a_settings_file_names_the_trunk(tmp_path):
    config = model_of(settings(made(tmp_path)))
    assert type(config.trunk).__name__ == "MultimodalPerceiver"
    assert [each.name for each in config.trunk.modalities] == ["tone", "card"]
    plain = experiment({"task": {**settings_task(tmp_path)}})
    with pytest.raises(WeftError, match="trunk multimodal_perceiver, not by encoder"):
        model_of(plain)
    pairs = {"task": "key_value(pairs=2)", "model": {"trunk": "multimodal_perceiver(latents=2)"}}
    with pytest.raises(WeftError, match="one kind of input take trunk = 'perceiver'"):
        model_of(experiment(pairs))


def settings_task(folder):
    own = {"name": "multimodal", "data": str(folder / "cards.csv"), "label": "kind"}
    return {**own, "sounds": ["tone"], "samples": 200}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({(3, "card"): "none.png"}, "cards.csv, line 5: card: there is no picture"),
        ({(3, "tone"): "none.wav"}, "cards.csv, line 5: tone: there is no sound file"),
        ({(3, "weight"): "heavy"}, "line 5: weight is a column of numbers; got 'heavy'"),
        ({(3, "weight"): "inf"}, "line 5: weight holds 'inf'"),
        ({(3, "kind"): ""}, "line 5: nothing in 'kind'"),
        ({(3, "card"): "wide.png"}, "line 5: card: wide.png is 4 × 6 .* and 4 × 4 are read"),
        ({(3, "tone"): "", (3, "card"): "", (3, "note"): "", (3, "weight"): ""}, "line 5: nothing"),
    ],
)
def test_bad_rows_are_said(tmp_path, changes, message):
    write_png(tmp_path / "wide.png", np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(WeftError, match=message):
        task(made(tmp_path, 12, changes)).load("train")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: Multimodal(data=str(t)), "name columns of one kind or more"),
        (lambda t: task(t, texts=("tone",)), "each column is named once"),
        (lambda t: task(t, texts=("numbers",)), "each column is named once"),
        (lambda t: task(t, sounds=("sond",)).load("test"), "no column 'sond'"),
        (lambda t: TASKS.parse("multimodal").load("test"), "read from your table"),
    ],
)
def test_bad_settings(tmp_path, make, message):
    with pytest.raises(WeftError, match=message):
        make(made(tmp_path, 12))

"""Your own pictures: from files to tokens, a trained model, drawings, probes and predictions."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import weft
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment, write_experiment
from weft.arena.tasks import TASKS
from weft.arena.tasks.pictures.task import Pictures
from weft.cli import app
from weft.errors import WeftError
from weft.pictures.drawing import write_png
from weft.training import train
from weft.use.draw import SIDE

run = CliRunner().invoke
KINDS = ("left", "right")


def picture(row, side=4):
    """Bright on the left or the right."""
    found = np.random.default_rng(row).integers(0, 60, (side, side, 3))
    half = slice(0, side // 2) if row % 2 == 0 else slice(side // 2, side)
    found[:, half] += 180
    return found.astype(np.uint8)


def folder(where, count=40, side=4):
    for row in range(count):
        (where / KINDS[row % 2]).mkdir(parents=True, exist_ok=True)
        write_png(where / KINDS[row % 2] / f"{row}.png", picture(row, side))
    return str(where)


def table(where, rows):
    lines = ["file,label,part", *(",".join(row) for row in rows)]
    (where / "table.csv").write_text("\n".join(lines))
    return str(where / "table.csv")


def test_a_folder_a_table_and_an_npz_hold_the_same(tmp_path):
    one = Pictures(data=folder(tmp_path / "photos"))
    rows = [[f"photos/{KINDS[i % 2]}/{i}.png", KINDS[i % 2], ""] for i in range(40)]
    two = Pictures(data=table(tmp_path, rows))
    all_of_them = np.stack([picture(row) for row in range(40)])
    labels = np.array(KINDS)[np.arange(40) % 2]
    np.savez(tmp_path / "photos.npz", x=all_of_them, y=labels)
    three = Pictures(data=str(tmp_path / "photos.npz"))
    seen = []
    for split in ("train", "valid", "test"):
        found = [{row.tobytes(): int(y) for row, y in zip(e.rows, e.classes, strict=True)}
                 for e in (task.load(split) for task in (one, two, three))]  # fmt: skip
        assert found[0] == found[1] == found[2]
        seen += found[0]
    wanted = {picture(row).tobytes() for row in range(40)}
    assert set(seen) == wanted
    assert one.labels == KINDS
    assert (one.length, one.vocab) == (48, 256)
    assert len(one.show(one.load("test").rows[0]).splitlines()) == 4


@pytest.mark.parametrize(("form", "length", "vocab"), [("grey", 16, 256), ("palette", 16, 8)])
def test_other_forms(tmp_path, form, length, vocab):
    task = Pictures(data=folder(tmp_path / "photos"), form=form, colours=8)
    batch = task.load("train").batch(np.arange(3))
    assert (task.length, task.vocab, tuple(batch.x.shape)) == (length, vocab, (3, length))
    assert int(batch.x.max()) < vocab


def test_pictures_without_classes(tmp_path):
    for row in range(20):
        write_png(tmp_path / f"{row}.png", picture(row))
    task = Pictures(data=str(tmp_path))
    assert (task.classes, task.labels) == (1, ("picture",))
    assert [len(task.load(split)) for split in ("train", "valid", "test")] == [14, 2, 4]


def trained(where, data, steps=60, **more):
    model = {
        "trunk": {
            "name": "encoder",
            "embedding": {"positions": "learned"},
            "stack": {"frame": {"dim": 32, "heads": 4}, "order": "sfsf", "mixer": "full"},
        }
    }
    training = {"steps": steps, "batch": 16, "lr": 5e-3, "warmup": 5, "device": "cpu"}
    task = {"name": "pictures", "data": data, "form": "palette", "colours": 8}
    own = experiment({"task": task, "model": model, "training": training, **more})
    write_experiment(where, own)
    train(run_of(own), where)
    return where


def called(*words):
    done = run(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


def test_drawn_completed_and_probed_from_the_command_line(tmp_path):
    data = folder(tmp_path / "photos", 60)
    model = trained(tmp_path / "run", data, 100, objective="pixel_lm")
    on = ("--device", "cpu")
    called("generate", model, "--samples", 6, "--out", tmp_path / "s.png", "--seed", 0, *on)
    image = np.asarray(Image.open(tmp_path / "s.png"))
    side = 4 * (SIDE // 4)
    assert image.shape == (side + 4, 6 * (side + 2) + 2, 3)
    # Every pixel that is drawn has a colour of the palette: the start is none of them.
    colours = np.rint(Pictures(data=data, form="palette", colours=8).palette()).astype(int)
    known = {tuple(colour) for colour in colours} | {(128, 128, 128)}
    assert {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()} <= known
    given = tmp_path / "photos" / "left" / "0.png"
    best = ("--temperature", 0, "--out", tmp_path / "c.png")
    called("generate", model, "--complete", given, *best, *on)
    image = np.asarray(Image.open(tmp_path / "c.png"))
    assert image.shape == (side + 4, 5 * (side + 2) + 2, 3)
    upper = [image[2 : 2 + side // 2, 2 + at * (side + 2) :][:, :side] for at in range(5)]
    assert all(np.array_equal(upper[0], other) for other in upper)
    assert (image[2 + side // 2 : 2 + side, 2 : 2 + side] == 128).all()  # not given
    # What is bright on the left above is so below: the model has learned it.
    below = image[2 + side // 2 : 2 + side, 2 + side + 2 :][:, :side].mean(-1)
    assert below[:, : side // 2].mean() > below[:, side // 2 :].mean() + 50
    shown = called("show", model).output
    assert "4 × 4 as palette, 16 tokens" in shown
    assert "--complete FILE.png" in shown
    lines = called("probe", model, *on, "--json").output.splitlines()
    accuracies = [json.loads(line)["accuracy"] for line in lines]
    assert len(accuracies) == 2
    assert max(accuracies) > 0.9
    assert re.search(r"layer 2: test accuracy .*\n", called("probe", model, *on).output)


def test_files_are_predicted(tmp_path):
    data = folder(tmp_path / "photos")
    model = weft.load(trained(tmp_path / "run", data))
    new = [str(tmp_path / "photos" / KINDS[row % 2] / f"{row}.png") for row in range(8)]
    assert model.predict(new) == [KINDS[row % 2] for row in range(8)]
    write_png(tmp_path / "wide.png", np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(WeftError, match=r"text 1: .*wide.png is 4 × 6, and the model takes 4 × 4"):
        model.predict([str(tmp_path / "wide.png")])
    rows = [["photos/left/0.png", "left", ""], ["wide.png", "left", ""]]
    done = called("predict", tmp_path / "run", table(tmp_path, rows), "--device", "cpu")
    assert "photos/left/0.png,left,,left" in done.output
    assert "line 3: " in done.output
    assert "accuracy 1.0000 on 1 rows" in done.output
    for words, message in (
        (["--samples", "2", "--out", "x.png"], "holds a Classifier"),
        (["--prompt", "x"], "holds a Classifier"),
    ):
        done = run(app, ["generate", str(tmp_path / "run"), *words, "--device", "cpu"])
        assert done.exit_code == 1
        assert message in done.output


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["none.png", "a", ""]], "table.csv, line 2: there is no picture"),
        ([["a.png", "a", ""], ["cut.png", "b", ""]], "line 3: .*cannot be read as a picture"),
        ([["a.png", "a", ""], ["wide.png", "b", ""]], "line 3: the picture is 4 × 6 .* is 4 × 4"),
        ([["a.png", "", ""]], "line 2: nothing in 'label'"),
        ([["a.png", "a", ""], ["a.png", "a", ""]], "pictures of two classes or more"),
        ([["clear.png", "a", ""]], "line 2: .*alpha channel"),
    ],
)
def test_bad_pictures_are_said_with_their_row(tmp_path, rows, message):
    write_png(tmp_path / "a.png", picture(0))
    write_png(tmp_path / "wide.png", np.zeros((4, 6, 3), np.uint8))
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    Image.new("RGBA", (4, 4)).save(tmp_path / "clear.png")
    with pytest.raises(WeftError, match=message):
        Pictures(data=table(tmp_path, rows)).load("train")


def test_bad_settings(tmp_path):
    with pytest.raises(WeftError, match="read from your files"):
        TASKS.parse("pictures").load("test")
    with pytest.raises(WeftError, match="no file or folder 'nowhere'"):
        Pictures(data="nowhere").load("test")
    with pytest.raises(WeftError, match=r"holds no .png"):
        Pictures(data=str(tmp_path)).load("test")
    with pytest.raises(WeftError, match="form is one of"):
        Pictures(form="cmyk")
    data = folder(tmp_path / "deep" / "er", 4)
    write_png(tmp_path / "deep" / "0.png", picture(0))
    with pytest.raises(WeftError, match="1, 3 levels deep"):
        Pictures(data=str(tmp_path / "deep")).load("test")
    assert data


def test_a_model_of_pixels_is_asked_for_pictures(tmp_path):
    model = trained(tmp_path / "run", folder(tmp_path / "photos"), 2, objective="pixel_lm")
    for words, message in (
        (["--prompt", "x"], "a model of pixels: give --samples 8"),
        (["--samples", "2", "--complete", "a.png"], "one of them"),
        (["--samples", "2", "--out", "x.jpg"], "written as .png"),
        (["--complete", str(tmp_path / "none.png"), "--out", "x.png"], "there is no picture"),
        (["--complete", "photo.png", "--given", "0", "--out", "x.png"], "no picture photo.png"),
    ):
        done = run(app, ["generate", str(model), *words, "--device", "cpu"])
        assert done.exit_code == 1, done.output
        assert message in done.output.replace("\n", " ")
    torch.manual_seed(0)
    done = run(app, ["probe", str(model), "--layers", "9", "--device", "cpu"])
    assert "layers are counted from 1 to 2" in done.output

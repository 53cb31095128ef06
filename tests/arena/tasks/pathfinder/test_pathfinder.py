"""Pathfinder, the task: which images a split holds, and the published folders."""

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, TASKS, Pathfinder, PathX
from weft.arena.tasks.pathfinder import task as pathfinder
from weft.arena.tasks.pathfinder.images import Drawing
from weft.errors import WeftError


def pretended(drawing, seed, first, count, *, threads=1):
    """Images that say which they are: pixel j of image i is a function of (drawing, seed, i, j)."""
    numbers = np.arange(first, first + count, dtype=np.int64)[:, None, None]
    pixels = np.arange(drawing.size**2).reshape(drawing.size, drawing.size)
    mixed = (numbers * 7919 + pixels * 31 + seed * 101 + drawing.contour_length * 17) % 256
    return mixed.astype(np.uint8), numbers[:, 0, 0] * 5 // 3 % 2


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    monkeypatch.setattr(pathfinder, "draw", pretended)
    monkeypatch.setattr(pathfinder, "_PIECE", 7)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def test_splits_hold_images_of_their_own(drawn):
    task = Pathfinder(train=20, valid=8, test=9, seed=3)
    drawing = Drawing.of(size=32, dashes=14)
    for split, first in {"test": 0, "valid": 1 << 29, "train": 1 << 30}.items():
        examples = task.load(split)
        images, labels = pretended(drawing, 3, first, getattr(task, split))
        assert np.array_equal(examples.rows.tokens.reshape(images.shape), images)
        assert np.array_equal(examples.labels, labels)
        batch = examples.batch(np.arange(3))
        assert batch.x.shape == (3, 1024)
        assert batch.valid is None


def test_fewer_images_are_the_first_ones(drawn):
    few, many = (Pathfinder(train=n, valid=n, test=n).load("train") for n in (5, 30))
    assert np.array_equal(few.rows.tokens, many.rows.tokens[: 5 * 1024])


@pytest.mark.parametrize("other", [dict(dashes=9), dict(seed=1), dict(size=64)], ids=str)
def test_settings_are_not_mixed_up(drawn, other):
    plain = Pathfinder(train=1, valid=1, test=4)
    changed = Pathfinder(train=1, valid=1, test=4, **other)
    first, second = (task.load("test").rows.tokens for task in (plain, changed))
    assert not np.array_equal(first, second)
    assert np.array_equal(plain.load("test").rows.tokens, first)


def test_path_x(drawn):
    task = TASKS.parse("pathx(train=2, valid=1, test=1)")
    assert isinstance(task, PathX)
    assert (str(task), task.length) == ("pathx(train=2, valid=1, test=1)", 128 * 128)
    assert "128×128" in task.source
    assert task.load("train").rows.lengths.tolist() == [128 * 128] * 2
    assert TASKS.parse("pathfinder").length == 1024


def test_baselines(drawn):
    found = Pathfinder(train=300, valid=1, test=200).baselines()
    labels = pretended(Drawing.of(), 0, 0, 200)[1]
    assert found["majority class"] == pytest.approx(labels.mean(), abs=0.2)
    assert 0.3 < found["brightness"] < 0.7


def test_brightness_is_found_out(monkeypatch, drawn):
    def bright(drawing, seed, first, count, *, threads=1):
        labels = np.arange(first, first + count) % 2
        return (labels * 90 + 5).astype(np.uint8)[:, None, None].repeat(32, 1).repeat(32, 2), labels

    monkeypatch.setattr(pathfinder, "draw", bright)
    assert Pathfinder(train=50, valid=1, test=40).baselines()["brightness"] == 1.0


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("pathfinder(size=48)", "published sizes are 32, 64, 128, 256"),
        ("pathfinder(test=0)", "at least one image"),
        ("pathfinder(seed=-1)", "0 or more"),
        ("pathfinder(dashes=4, folder='x')", "files exist for"),
    ],
)
def test_wrong_settings(spec, reason):
    with pytest.raises(WeftError, match=reason):
        TASKS.parse(spec)


@pytest.fixture
def published(tmp_path):
    """A small folder as Long Range Arena distributes it, one image empty."""
    from PIL import Image

    base = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (base / "metadata").mkdir(parents=True)
    images, labels = pretended(Drawing.of(), 0, 0, 21)
    for part in range(3):
        folder = base / "imgs" / str(part)
        folder.mkdir(parents=True)
        lines = []
        for i in range(7):
            number = part * 7 + i
            name = f"sample_{i}.png"
            Image.fromarray(images[number]).save(folder / name)
            lines.append(f"imgs/{part} {name} {i} {labels[number]} 1.0 14 1\n")
        # Part 10 comes after 2, although not in the order of letters.
        note = base / "metadata" / f"{(1, 2, 10)[part]}.npy"
        note.write_text("".join(lines))
    (base / "imgs" / "1" / "sample_3.png").write_bytes(b"")
    return tmp_path / "pathfinder32", np.delete(images, 10, 0), np.delete(labels, 10)


def test_published_folders_are_read(published):
    folder, images, labels = published
    task = Pathfinder(folder=str(folder))
    splits = [task.load(split) for split in SPLITS]
    assert [len(split) for split in splits] == [16, 2, 2]
    tokens = np.concatenate([split.rows.tokens for split in splits])
    assert np.array_equal(tokens.reshape(20, 32, 32), images)
    assert np.array_equal(np.concatenate([split.labels for split in splits]), labels)
    assert "files of the folder 'pathfinder32'" in task.source


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("imgs/0 sample_0.png", "needs folder, file, number, label"),
        ("imgs/0 sample_0.png 0 2", "a label is 0 to 1"),
        ("imgs/0 sample_9.png 0 1", "there is no image"),
    ],
)
def test_a_bad_note_is_named(published, line, reason):
    note = published[0] / "curv_contour_length_14" / "metadata" / "2.npy"
    note.write_text(f"imgs/0 sample_0.png 0 1\n{line}\n")
    with pytest.raises(WeftError) as caught:
        Pathfinder(folder=str(published[0])).load("test")
    assert f"{note}, line 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_wrong_images(published):
    path = published[0] / "curv_contour_length_14" / "imgs" / "0" / "sample_2.png"
    with pytest.raises(WeftError, match=r"pixels; size=64 was asked for"):
        Pathfinder(folder=str(published[0]), size=64).load("test")
    path.write_bytes(b"no image")
    with pytest.raises(WeftError, match=r"sample_2\.png is not an image"):
        Pathfinder(folder=str(published[0])).load("test")
    with pytest.raises(WeftError, match="curv_contour_length_9"):
        Pathfinder(folder=str(published[0]), dashes=9).load("test")


@pytest.mark.long
def test_real_images():
    """From the generator itself, which has tests of its own."""
    task = Pathfinder(train=3000, valid=10, test=2000)
    found = task.baselines()
    assert abs(found["majority class"] - 0.5) < 0.05
    assert abs(found["brightness"] - 0.5) < 0.06
    assert task.load("test").rows.tokens.max() > 200

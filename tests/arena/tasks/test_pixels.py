"""Pixels: both forms of files, the palette, and pictures that come back from their tokens."""

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, TASKS, Pixels
from weft.arena.tasks.pixels import reduced
from weft.errors import WeftError

RNG = np.random.default_rng(0)
INKS = RNG.integers(0, 256, (6, 3), dtype=np.uint8)
PICTURES = INKS[RNG.integers(0, 6, (72, 32, 32))]
LABELS = np.arange(72) % 10


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def plain(folder, x=PICTURES, y=LABELS, **changes):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "train.npz", x=x[:60], y=y[:60])
    np.savez(folder / "test.npz", x=x[60:], y=y[60:])
    return Pixels(folder=str(folder), valid=10, **{"colours": 6, **changes})


def official(folder):
    folder.mkdir()
    planes = PICTURES.transpose(0, 3, 1, 2).reshape(72, -1)
    records = np.concatenate([LABELS[:, None].astype(np.uint8), planes], axis=1)
    for i in range(5):
        records[i * 12 : i * 12 + 12].tofile(folder / f"data_batch_{i + 1}.bin")
    records[60:].tofile(folder / "test_batch.bin")
    return Pixels(folder=str(folder), valid=10, colours=6)


def pictures(task, split):
    found = task.load(split)
    tokens = np.stack([found.rows[i] for i in range(len(found))])
    return task.palette()[tokens].round().astype(np.uint8), found.labels


def test_pictures_come_back(tmp_path):
    """Six inks, six colours: nothing is lost."""
    task = plain(tmp_path / "data")
    assert (task.vocab, task.length) == (6, 1024)
    seen = []
    for split in SPLITS:
        found, labels = pictures(task, split)
        seen += [(p.tobytes(), int(y)) for p, y in zip(found, labels, strict=True)]
    truth = [(p.tobytes(), int(y)) for p, y in zip(PICTURES, LABELS, strict=True)]
    assert sorted(seen) == sorted(truth)
    assert [len(task.load(split)) for split in SPLITS] == [50, 10, 12]


def test_both_forms_are_the_same_data(tmp_path):
    one, two = plain(tmp_path / "plain"), official(tmp_path / "official")
    for split in SPLITS:
        for left, right in zip(pictures(one, split), pictures(two, split), strict=True):
            assert np.array_equal(left, right)


def test_smaller_pictures_are_means(tmp_path):
    found = reduced(PICTURES[:2], 8)
    for y, x, c in ((0, 0, 0), (3, 7, 1), (7, 2, 2)):
        square = PICTURES[1, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4, c].astype(float)
        assert found[1, y, x, c] == int(square.mean() + 0.5)
    task = plain(tmp_path / "data", size=8, colours=16)
    assert task.length == 64
    assert task.load("test").batch(np.arange(3)).x.shape == (3, 64)
    assert len(task.show(task.load("test").rows[0]).splitlines()) > 1
    assert set(task.baselines()) == {"majority class"}


def test_the_palette_is_made_from_training_pictures_alone(tmp_path):
    other = PICTURES.copy()
    other[60:] = RNG.integers(0, 256, (12, 32, 32, 3))
    one, two = plain(tmp_path / "one"), plain(tmp_path / "two", other)
    assert np.array_equal(one.palette(), two.palette())


def test_what_is_wrong_says_so(tmp_path):
    with pytest.raises(WeftError, match="size divides 32"):
        Pixels(size=5)
    (tmp_path / "none").mkdir()
    with pytest.raises(WeftError, match=r"train\.npz"):
        Pixels(folder=str(tmp_path / "none")).load("train")
    with pytest.raises(WeftError, match="uint8"):
        plain(tmp_path / "grey", PICTURES[..., 0]).load("train")
    with pytest.raises(WeftError, match="as many as the pixels have"):
        plain(tmp_path / "many", colours=7).load("train")
    assert TASKS.parse("pixels(colours=64, size=16)").length == 256

"""Image: grey as TensorFlow makes it, both forms of files, black is a colour."""

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, Image
from weft.arena.tasks.image import grey
from weft.errors import WeftError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (72, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(72) % 10


def write_official(folder, colours=COLOURS, labels=LABELS):
    planes = colours.transpose(0, 3, 1, 2).reshape(len(colours), -1)
    records = np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1)
    for i in range(5):
        records[i * 12 : i * 12 + 12].tofile(folder / f"data_batch_{i + 1}.bin")
    records[60:].tofile(folder / "test_batch.bin")
    return Image(folder=str(folder), valid=10)


def write_plain(folder, x, y=LABELS):
    np.savez(folder / "train.npz", x=x[:60], y=y[:60])
    np.savez(folder / "test.npz", x=x[60:], y=y[60:])
    return Image(folder=str(folder), valid=10)


def exact_grey(red, green, blue):
    """⌊255.5 (0.2989 r + 0.587 g + 0.114 b) / 255⌋ in whole numbers."""
    return 511 * (2989 * red + 5870 * green + 1140 * blue) // (2 * 255 * 10_000)


def test_grey_is_the_formula():
    r, g, b = (COLOURS.astype(np.int64)[..., i] for i in range(3))
    scaled = 511 * (2989 * r + 5870 * g + 1140 * b) / (2 * 255 * 10_000)
    expected = exact_grey(r, g, b)
    # Where the exact value is a whole number to within float32, rounding may go either way.
    clear = abs(scaled - scaled.round()) > 1e-4
    assert (grey(COLOURS) == expected)[clear].all()
    assert clear.mean() > 0.99
    plain_average = COLOURS.mean(-1).astype(np.uint8)
    assert (plain_average == expected).mean() < 0.2


@pytest.mark.parametrize(
    ("colour", "value"),
    [
        ((0, 0, 0), 0),
        ((255, 255, 255), 255),
        ((255, 0, 0), 76),
        ((0, 255, 0), 149),
        ((0, 0, 255), 29),
    ],
)
def test_grey_by_hand(colour, value):
    assert grey(np.array(colour, dtype=np.uint8)) == value == exact_grey(*colour)


def content(examples):
    return [(examples.rows[i].tobytes(), int(y)) for i, y in enumerate(examples.labels)]


def test_splits_are_the_files(tmp_path):
    task = write_official(tmp_path)
    train, valid, test = (content(task.load(split)) for split in SPLITS)
    expected = [(grey(c).tobytes(), int(y)) for c, y in zip(COLOURS, LABELS, strict=True)]
    assert sorted(train + valid) == sorted(expected[:60])
    assert sorted(test) == sorted(expected[60:])
    assert len(valid) == 10
    assert not set(train) & set(valid)
    assert "CIFAR-10" in task.source


def test_both_forms_are_the_same_data(tmp_path):
    for name in ("official", "plain"):
        (tmp_path / name).mkdir()
    official = write_official(tmp_path / "official")
    plain = write_plain(tmp_path / "plain", grey(COLOURS))
    for split in SPLITS:
        assert content(official.load(split)) == content(plain.load(split))
    assert plain.source.startswith("pictures, npz files of the folder 'plain'")


def test_black_pixels_are_pixels(tmp_path):
    x = grey(COLOURS)
    x[:, :, ::2] = 0
    batch = write_plain(tmp_path, x).load("test").batch(np.arange(4))
    assert batch.valid is None
    assert batch.x.shape == (4, 1024)
    assert (batch.x[:, ::2] == 0).all()


def test_pixels_are_in_reading_order(tmp_path):
    x = np.tile(np.arange(32, dtype=np.uint8)[:, None], (72, 1, 32))
    task = write_plain(tmp_path, x + np.zeros((72, 32, 32), np.uint8))
    row = task.load("test").rows[0]
    assert row[:33].tolist() == [0] * 32 + [1]
    assert len(task.show(row).splitlines()) == 32


def test_pickles_are_refused(tmp_path):
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").write_bytes(b"\x80\x04.")
    with pytest.raises(WeftError, match=r"holds data_batch_1, .*pickles, which are never loaded"):
        Image(folder=str(tmp_path)).load("train")


def test_an_npz_of_objects_is_refused(tmp_path):
    np.savez(tmp_path / "test.npz", x=np.array([{}], dtype=object), y=LABELS[:1])
    with pytest.raises(WeftError, match=r"test\.npz is not an npz file with x and y"):
        Image(folder=str(tmp_path)).load("test")


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (np.zeros((3, 32, 32)), [1, 2, 3], "x is uint8"),
        (np.zeros((3, 28, 28), np.uint8), [1, 2, 3], r"got uint8 \(3, 28, 28\)"),
        (np.zeros((3, 32, 32), np.uint8), [1, 2], "x is uint8"),
        (np.zeros((3, 32, 32), np.uint8), [1, 2, 10], "labels are whole numbers 0 to 9"),
        (np.zeros((3, 32, 32), np.uint8), [1.0, 2, 3], "labels are whole numbers"),
        (np.zeros((0, 32, 32), np.uint8), np.zeros(0, int), "one or more"),
    ],
)
def test_wrong_arrays(tmp_path, x, y, reason):
    np.savez(tmp_path / "test.npz", x=x, y=np.array(y))
    with pytest.raises(WeftError, match=reason):
        Image(folder=str(tmp_path)).load("test")


def test_broken_files(tmp_path):
    write_official(tmp_path)
    task = Image(folder=str(tmp_path), valid=10)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(WeftError, match=r"data_batch_4\.bin is missing"):
        task.load("train")
    (tmp_path / "test_batch.bin").write_bytes(b"\1" * 3000)
    with pytest.raises(WeftError, match="whole records of 3073 bytes; got 3,000"):
        task.load("test")
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" * 3073)
    with pytest.raises(WeftError, match="labels are whole numbers 0 to 9"):
        task.load("test")
    (tmp_path / "test_batch.bin").unlink()
    (tmp_path / "test.npz").write_bytes(b"PK no")
    with pytest.raises(WeftError, match="is not an npz file"):
        task.load("test")

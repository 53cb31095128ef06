"""Tasks on sound: files and tables to samples and splits; what is wrong is said with the row."""

import numpy as np
import pytest
import torch

from weft.arena.tasks import TASKS
from weft.arena.tasks.sound.digits import Digits
from weft.arena.tasks.sound.sounds import Sounds
from weft.errors import WeftError
from weft.sound.augment import Augment
from weft.sound.files import write_wav


def sound(seed=0, count=300):
    return 0.2 * np.random.default_rng(seed).standard_normal(count).clip(-4, 4)


def table(folder, rows, header="file,label,part"):
    (folder / "table.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]))
    return str(folder / "table.csv")


def many(folder, count=20):
    for i in range(count):
        write_wav(folder / f"{i}.wav", sound(i, 200 + 10 * i), 8_000)
    return table(folder, [[f"{i}.wav", "ab"[i % 2], ""] for i in range(count)])


def test_a_table_of_files(tmp_path):
    task = TASKS.parse(f"sounds(data='{many(tmp_path)}', length=350)")
    assert (task.labels, task.classes, task.inputs) == (("a", "b"), 2, {"channels": 1})
    splits = {split: task.load(split) for split in ("train", "valid", "test")}
    assert {split: len(rows) for split, rows in splits.items()} == {
        "train": 14, "valid": 2, "test": 4,
    }  # fmt: skip
    seen = []
    for rows in splits.values():
        for row in range(len(rows)):
            i = int(np.diff(rows.sounds.starts)[row] - 200) // 10
            assert rows.labels[row] == i % 2
            wanted = sound(i, 200 + 10 * i)[:350]
            wanted = (wanted - wanted.mean()) / wanted.std()
            assert np.abs(rows[row][:, 0] - wanted).max() < 1e-3
            seen.append(i)
    assert sorted(seen) == list(range(20))
    batch = splits["train"].batch(np.arange(3))
    assert batch.x.shape[2] == 1
    assert batch.valid is not None
    assert (batch.x[~batch.valid] == 0).all()


def test_bytes_are_tokens(tmp_path):
    task = Sounds(data=many(tmp_path), form="bytes")
    assert (task.vocab, task.inputs) == (256, {"vocab": 256})
    assert task.load("train").batch(np.arange(2)).x.dtype in (torch.uint8, torch.int64)
    assert len(task.show(task.load("test").rows[0])) == 64


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["0.wav", "a", "train"], ["cut.wav", "b", "test"]], r"table.csv, line 3: .*cut short"),
        ([["none.wav", "a", "train"]], r"table.csv, line 2: there is no sound file"),
        ([["0.wav", "a", "train"], ["still.wav", "b", "test"]], "line 3: .*silent"),
        ([["0.wav", "", "train"]], "line 2: nothing in 'label'"),
        ([["0.wav", "a", "later"], ["1.wav", "b", "test"]], "line 2: a split is train"),
        ([["0.wav", "a", "train"], ["0.wav", "b", "test"]], "line 3 is the same as .* line 2"),
        ([["0.wav", "a", "train"], ["1.wav", "b", "test"]], "the split valid has no sounds"),
        ([["0.wav", "a", "train"]], "two classes or more"),
    ],
)
def test_bad_rows_are_said(tmp_path, rows, message):
    many(tmp_path, 2)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "0.wav").read_bytes()[:-50])
    write_wav(tmp_path / "still.wav", np.zeros(90), 8_000)
    with pytest.raises(WeftError, match=message):
        _ = Sounds(data=table(tmp_path, rows), split="part").classes


def test_no_table_and_wrong_settings(tmp_path):
    with pytest.raises(WeftError, match="sounds are read from your files"):
        _ = Sounds().classes
    with pytest.raises(WeftError, match="there is no file"):
        _ = Sounds(data=str(tmp_path / "none.csv")).classes
    with pytest.raises(WeftError, match="test_share is above 0"):
        Sounds(test_share=0.7)
    with pytest.raises(WeftError, match="take form='samples'"):
        Sounds(form="mu_law", shift=0.1)


def digits(folder, takes=range(8)):
    for digit in range(2):
        for take in takes:
            write_wav(folder / f"{digit}_me_{take}.wav", sound(10 * digit + take), 8_000)


def test_the_first_takes_are_the_test(tmp_path):
    digits(tmp_path)
    task = Digits(folder=str(tmp_path), valid=2)
    sizes = [len(task.load(split)) for split in ("train", "valid", "test")]
    assert sizes == [4, 2, 10]
    tests = {tuple(task.load("test").cut(row)[:5]) for row in range(10)}
    files = {
        tuple(np.rint(sound(10 * d + take)[:5] * 32768).astype(int))
        for d in range(2)
        for take in range(5)
    }
    assert {tuple(map(int, each)) for each in tests} == files


def test_packed_recordings_are_checked(tmp_path):
    pcm = np.arange(1, 60, dtype=np.int16)
    good = {"pcm": pcm, "offsets": np.array([0, 30, 59]), "label": np.array([3, 7])}
    np.savez(tmp_path / "test.npz", **good)
    for name, value, message in [
        ("label", np.array([3, 10]), "labels are 0 to 9"),
        ("offsets", np.array([0, 30, 60]), "offsets run from 0 to 59"),
        ("pcm", pcm.astype(np.float32), "pcm is int16"),
        ("pcm", np.where(np.arange(59) < 30, 1, pcm).astype(np.int16), "recording 0 is silent"),
    ]:
        np.savez(tmp_path / "train.npz", **{**good, name: value})
        with pytest.raises(WeftError, match=message):
            Digits(folder=str(tmp_path), valid=1).load("train")


def test_changes_are_a_function_of_the_step(tmp_path):
    digits(tmp_path)
    plain = Digits(folder=str(tmp_path), valid=2)
    task = Digits(folder=str(tmp_path), valid=2, shift=0.01, gain=6.0, speed=0.1, noise=20.0)
    assert plain.stream(3) is None
    one, two = task.stream(3), task.stream(3)
    assert one is not None
    assert two is not None
    assert torch.equal(one.batch(5).x, two.batch(5).x)
    assert not torch.equal(one.batch(5).x[:, :200], one.batch(6).x[:, :200])
    assert torch.equal(task.load("valid").batch(np.arange(2)).x,
                       plain.load("valid").batch(np.arange(2)).x)  # fmt: skip


def test_each_change_does_what_it_says():
    x = sound(0, 4_000).astype(np.float32)
    x /= x.std()

    def changed(**settings):
        rng = np.random.default_rng(1)
        return [Augment(**settings).apply(x, 8_000, rng) for _ in range(30)]

    counts = [len(each) for each in changed(speed=0.2)]
    assert 4_000 / 1.2 - 1 <= min(counts) < 3_600 < 4_400 < max(counts) <= 5_001
    later = [len(each) - 4_000 for each in changed(shift=0.1)]
    assert 0 <= min(later) < 200 < 600 < max(later) <= 800
    assert all(np.array_equal(each[-4_000:], x) for each in changed(shift=0.1))
    louder = [20 * np.log10(each.std()) for each in changed(gain=6.0)]
    assert -6.01 <= min(louder) < -3 < 3 < max(louder) <= 6.01
    below = [-20 * np.log10((each - x).std()) for each in changed(noise=15.0)]
    assert 14.5 <= min(below) < 25 < 35 < max(below) <= 45.5

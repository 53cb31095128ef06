"""Passages of the standard library: whole files in one split, the same for the same Python."""

import numpy as np
import pytest

from weft.arena.tasks import passages
from weft.arena.tasks.passages import PACKAGES, Passages, cut
from weft.errors import WeftError


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of known content: byte k of file f says which file it is."""
    for number, package in enumerate(PACKAGES):
        folder = tmp_path / package
        (folder / "tests").mkdir(parents=True)
        (folder / "tests" / "test_it.py").write_bytes(b"t" * 500)
        for file in range(6):
            content = bytes([10 * number + file]) * (100 + 40 * file)
            (folder / f"m{file}.py").write_bytes(content)
    monkeypatch.setattr(passages, "_library", lambda: tmp_path)
    return tmp_path


def files_of(task, split):
    """Which files a split is from, told by their bytes."""
    return {int(row[0]) for row in task.load(split).rows}


def test_a_file_is_in_one_split(library):
    task = Passages(length=64)
    parts = [files_of(task, split) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 6 * len(PACKAGES)
    assert ord("t") not in set.union(*parts)
    for split in ("train", "valid", "test"):
        found = task.load(split)
        assert set(found.classes.tolist()) == set(range(len(PACKAGES)))
        pairs = zip(found.rows, found.classes, strict=True)
        assert all(int(row[0]) // 10 == label for row, label in pairs)
    assert files_of(Passages(length=64, seed=1), "test") != parts[2]
    assert "48 files" in task.source
    assert "split by file" in task.source


@pytest.mark.parametrize(("size", "lengths"), [(7, []), (8, [8]), (32, [32]), (40, [32, 24]),
                                               (48, [32, 32]), (64, [32, 32, 32])])  # fmt: skip
def test_pieces(size, lengths):
    content = bytes(range(size))
    pieces = cut(content, length=32, overlap=2)
    assert list(map(len, pieces)) == lengths
    assert all(piece == content[16 * at : 16 * at + 32] for at, piece in enumerate(pieces))
    assert not pieces or pieces[-1][-1] == content[-1]  # the end of a file is read


def test_this_python_has_the_task():
    task = Passages()
    train, test = task.load("train"), task.load("test")
    assert len(train) > 400
    assert len(test) > 150
    assert max(train.rows.lengths) == 4096
    assert np.bincount(test.classes, minlength=len(PACKAGES)).min() > 5
    rules = task.baselines()
    assert rules["majority class"] < 0.3 < rules["byte frequencies"] < 0.9
    assert "import" in "".join(task.show(row) for row in test.rows)


def test_byte_frequencies_need_no_order(library):
    """Each file of this library is one byte, which no other file has: nothing can be told."""
    score = Passages(length=64).baselines()["byte frequencies"]
    assert score < 0.5


def test_a_library_without_its_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "_library", lambda: tmp_path)
    with pytest.raises(WeftError, match="no files of 'asyncio'"):
        Passages(length=64).load("train")


def test_settings_are_checked():
    with pytest.raises(WeftError, match="length is at least 4"):
        Passages(length=3)
    with pytest.raises(WeftError, match="overlap is from 1 to length"):
        Passages(overlap=0)

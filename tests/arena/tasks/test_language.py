"""Language: every byte is predicted once, and the baselines are what counting gives."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.arena.tasks import SPLITS, TASKS, Language
from weft.errors import WeftError

TEXT = "".join(f"line {i * i % 97}: the quick brown fox\n" for i in range(400)).encode()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("language") / "text8"
    path.write_bytes(TEXT)
    return path


def check_windows(rows, data, length):
    """Each row reads the last byte of the one before, and predicts the next ones."""
    sizes = [len(row) for row in rows]
    assert all(size == length for size in sizes[:-1])
    assert 2 <= sizes[-1] <= length
    assert rows[0][0] == data[0]
    assert b"".join(row[1:].tobytes() for row in rows) == data[1:]
    for before, after in pairwise(rows):
        assert before[-1] == after[0]


@given(length=st.integers(2, 300))
def test_every_byte_is_predicted_once(file, length):
    task = Language(folder=str(file), length=length)
    cuts = [0, int(0.9 * len(TEXT)), int(0.95 * len(TEXT)), len(TEXT)]
    for split, begin, end in zip(SPLITS, cuts, cuts[1:], strict=False):
        examples = task.load(split)
        rows = [examples.rows[i] for i in range(len(examples))]
        check_windows(rows, TEXT[begin:end], length)


@pytest.mark.parametrize("overlap", [0, 2])
def test_the_check_bites(overlap):
    data = TEXT[:1000]
    wrong = [np.frombuffer(data[i : i + 50], dtype=np.uint8) for i in range(0, 960, 50 - overlap)]
    with pytest.raises(AssertionError):
        check_windows(wrong, data, 50)


def test_baselines_by_counting(file):
    found = Language(folder=str(file.parent)).baselines()
    train, test = TEXT[: int(0.9 * len(TEXT))], TEXT[int(0.95 * len(TEXT)) :]
    single, pairs = Counter(train), Counter(pairwise(train))
    before = Counter(train[:-1])
    one = {b: (single[b] + 1) / (len(train) + 256) for b in range(256)}
    two = {(a, b): (pairs[a, b] + one[b]) / (before[a] + 1) for a, b in pairwise(test)}
    bits = [-math.log2(one[b]) for b in test[1:]]
    more = [-math.log2(two[a, b]) for a, b in pairwise(test)]
    assert found["uniform"] == 8.0
    assert found["byte frequencies"] == pytest.approx(sum(bits) / len(bits))
    assert found["previous byte"] == pytest.approx(sum(more) / len(more))
    assert found["previous byte"] < found["byte frequencies"] < 8.0


def test_the_file_is_named(file):
    assert Language(folder=str(file)).source == (
        f"text8, {len(TEXT):,} bytes, split 90/5/5 by position"
    )


def test_what_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.delenv("WEFT_DATA", raising=False)
    with pytest.raises(WeftError, match=r"set WEFT_DATA.*enwik8"):
        Language().load("train")
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    with pytest.raises(WeftError, match=r"there is no folder .*language"):
        Language().load("train")
    (tmp_path / "language").mkdir()
    with pytest.raises(WeftError, match="holds nothing"):
        Language().load("train")
    (tmp_path / "language" / "a.txt").write_bytes(b"")
    with pytest.raises(WeftError, match="is empty"):
        Language().load("train")
    (tmp_path / "language" / "a.txt").write_bytes(b"abcdefgh")
    with pytest.raises(WeftError, match="too short: its test part has 1 bytes"):
        Language().load("test")
    (tmp_path / "language" / "b.txt").write_bytes(b"b")
    with pytest.raises(WeftError, match=r"holds a\.txt, b\.txt"):
        Language().load("test")
    with pytest.raises(WeftError, match="one to predict; got 1"):
        TASKS.parse("language(length=1)")

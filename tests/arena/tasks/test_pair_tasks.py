"""Tasks of two sequences: reversal, drawn, and translation, from files."""

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, Reversal, Translate
from weft.errors import WeftError


def test_targets_are_sources_backwards():
    task = Reversal(length=7, symbols=5, train=300, valid=20, test=30)
    for split, count in zip(SPLITS, (300, 20, 30), strict=True):
        found = task.load(split)
        assert len(found) == count
        for row in range(count):
            assert found.second[row].tolist() == found.rows[row].tolist()[::-1]
    lengths = task.load("train").rows.lengths
    assert set(lengths.tolist()) == set(range(1, 8))
    assert set(np.unique(task.load("train").rows.tokens).tolist()) == set(range(5))
    first, second = (task.load(split).rows.tokens[:50].tolist() for split in ("train", "test"))
    assert first != second
    assert task.load("train").rows.tokens[:50].tolist() == first


def test_baselines_of_reversal_by_hand():
    task = Reversal(length=4, symbols=3, train=10, test=200)
    found, test = task.baselines(), task.load("test")
    right = total = 0
    for row in range(len(test)):
        source, target = test.rows[row].tolist(), test.second[row].tolist()
        right += sum(a == b for a, b in zip(source, target, strict=True)) + 1
        total += len(target) + 1
    assert found["copying"] == pytest.approx(right / total)
    letters = total - len(test)
    assert found["one symbol"] == pytest.approx((letters / 3 + len(test)) / total)


def test_pairs_of_a_file(tmp_path):
    rows = [("guten Tag", "good day"), ("drei", "three"), ("é", "e")]
    for split in SPLITS:
        lines = "".join(f"{a}\t{b}\n" for a, b in rows)
        (tmp_path / f"{split}.tsv").write_text(lines, encoding="utf-8")
    task = Translate(folder=str(tmp_path), length=6)
    found = task.load("test")
    assert [found.rows[i].tobytes().decode() for i in range(3)] == [a for a, _ in rows]
    assert [found.second[i].tobytes().decode() for i in range(3)] == [b for _, b in rows]
    batch = found.batch(np.arange(3))
    assert batch.x.shape == batch.second.shape == (3, 6)
    # Cut to six: "guten " against "good d", "drei" against "three", "é" (two bytes) against "e".
    baselines = task.baselines()
    assert baselines["copying"] == pytest.approx((1 + 0 + 0 + 3) / (6 + 5 + 1 + 3))
    assert 0 < baselines["most frequent byte"] < 1
    assert task.show(found.rows[1]) == "drei"
    assert "pairs of texts" in task.source


def test_what_is_wrong_says_so(tmp_path):
    with pytest.raises(WeftError, match="at least 1"):
        Reversal(length=0)
    with pytest.raises(WeftError, match="length is at least 1"):
        Translate(length=0)
    with pytest.raises(WeftError, match=r"train\.tsv"):
        Translate(folder=str(tmp_path)).load("train")
    (tmp_path / "train.tsv").write_text("one column\n")
    with pytest.raises(WeftError, match="needs 2 columns"):
        Translate(folder=str(tmp_path)).load("train")
    (tmp_path / "train.tsv").write_text("")
    with pytest.raises(WeftError, match="holds no pairs"):
        Translate(folder=str(tmp_path)).load("train")

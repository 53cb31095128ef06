"""Text: both forms of the files give the same data, and validation never sees the test set."""

import json

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, Text
from weft.arena.tasks.readers import held_out
from weft.errors import WeftError

REVIEWS = {
    name: [(f"{name} review {i}, {'good' if i % 3 else 'bad'} — {'x' * (i % 7)}", int(i % 3 > 0))
           for i in range(60)]
    for name in ("train", "test")
}  # fmt: skip


def write_plain(folder, reviews=REVIEWS):
    folder.mkdir(exist_ok=True)
    for name, rows in reviews.items():
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return Text(folder=str(folder), valid=9)


def write_official(folder, reviews=REVIEWS):
    for name, rows in reviews.items():
        for i, (text, label) in enumerate(rows):
            place = folder / "aclImdb" / name / ("pos" if label else "neg")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i}_{7 if label else 2}.txt").write_text(text, encoding="utf-8")
    return Text(folder=str(folder), valid=9)


def content(examples):
    return [(examples.rows[i].tobytes(), int(y)) for i, y in enumerate(examples.labels)]


def given(name):
    return sorted((text.encode(), label) for text, label in REVIEWS[name])


@pytest.mark.parametrize("write", [write_plain, write_official])
def test_splits_are_the_files(tmp_path, write):
    task = write(tmp_path / "data")
    train, valid, test = (content(task.load(split)) for split in SPLITS)
    assert sorted(train + valid) == given("train")
    assert sorted(test) == given("test")
    assert len(valid) == 9
    assert not set(train) & set(valid)


def test_both_forms_are_the_same_data(tmp_path):
    plain, official = write_plain(tmp_path / "a"), write_official(tmp_path / "b")
    shuffled = {name: rows[::-1] for name, rows in REVIEWS.items()}
    other_order = write_plain(tmp_path / "c", shuffled)
    for split in SPLITS:
        assert content(plain.load(split)) == content(official.load(split))
        assert content(plain.load(split)) == content(other_order.load(split))
    assert "aclImdb" in official.source
    assert "jsonl files of the folder 'a'" in plain.source


def test_classes_are_mixed(tmp_path):
    """Files are sorted by class; the first rows of a split must not be."""
    labels = write_official(tmp_path).load("test").labels
    assert 0 < labels[:20].sum() < 20


def test_seeds_choose_other_reviews(tmp_path):
    write_plain(tmp_path)
    one, two = (Text(folder=str(tmp_path), valid=9, seed=seed) for seed in (0, 1))
    assert content(one.load("valid")) != content(two.load("valid"))
    assert sorted(content(one.load("test"))) == sorted(content(two.load("test")))


def test_equal_reviews_stay_together():
    items = [b"same"] * 5 + [b"%d" % i for i in range(20)]
    for count in range(1, 20):
        stay, held = held_out(items, count, 0)
        assert sorted([*stay, *held]) == list(range(25))
        assert count <= len(held) <= count + 4
        assert not {items[i] for i in stay} & {items[i] for i in held}


@pytest.mark.parametrize("count", [0, 25, 26])
def test_too_many_held_out(count):
    with pytest.raises(WeftError, match="1 to 24 can be held out"):
        held_out([b"%d" % i for i in range(25)], count, 0)


def test_reviews_are_cut(tmp_path):
    write_plain(tmp_path)
    examples = Text(folder=str(tmp_path), valid=9, length=5).load("test")
    assert set(examples.rows.lengths) == {5}
    batch = examples.batch(np.arange(3))
    assert batch.x.tolist() == [list(b"test ")] * 3


def test_the_majority(tmp_path):
    assert write_plain(tmp_path).baselines() == {"majority class": 40 / 60}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a", "label": 2}', "a label is 0 to 1; got 2"),
        ('{"text": "a", "label": "1"}', "needs 'label', a whole number; got '1'"),
        ('{"text": "a", "label": true}', "needs 'label'"),
        ('{"text": "", "label": 1}', "the text is empty"),
        ('{"label": 1}', "needs 'text', text; got None"),
        ('["a", 1]', "needs 'text'"),
        ('{"text": "a"', "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    (tmp_path / "test.jsonl").write_text('{"text": "a", "label": 1}\n\n' + line + "\n")
    with pytest.raises(WeftError) as caught:
        Text(folder=str(tmp_path)).load("test")
    assert f"{tmp_path / 'test.jsonl'}, line 3: " in str(caught.value)
    assert reason in str(caught.value)


def test_missing_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    with pytest.raises(WeftError, match=r"no folder .*text.*aclImdb.*train\.jsonl"):
        Text().load("train")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "test.jsonl").write_text("")
    with pytest.raises(WeftError, match=r"holds test\.jsonl\. For text it holds"):
        Text().load("train")
    with pytest.raises(WeftError, match="holds no reviews"):
        Text().load("test")

"""Key-value retrieval of UUIDs: documents are JSON, answers are looked up, files are read."""

import json
import uuid

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, KeyValueUuid
from weft.errors import WeftError


def read_back(task, row):
    """The pairs of a document and the key asked for, by the json module."""
    text = task.show(row)
    data, _, question = text.rpartition("\n")
    pairs = list(json.loads(data).items())
    asked = json.loads(question.removesuffix('": "') + '"')
    return pairs, asked


def check_split(task, examples):
    places = []
    for i in range(len(examples)):
        assert len(examples.rows[i]) == task.length
        pairs, asked = read_back(task, examples.rows[i])
        assert len(pairs) == task.pairs
        assert int(dict(pairs)[asked][0], 16) == examples.labels[i]
        places.append([key for key, _ in pairs].index(asked))
        assert all(uuid.UUID(text).version == 4 for pair in pairs for text in pair)
    return places


@pytest.mark.parametrize("pairs", [1, 2, 9])
def test_answers_can_be_looked_up(pairs):
    task = KeyValueUuid(pairs=pairs, train=30, valid=4, test=6)
    grid = sorted({0, *np.linspace(0, pairs - 1, 5).round().astype(int)}) if pairs > 4 else None
    for split in SPLITS:
        examples = task.load(split)
        places = check_split(task, examples)
        if split != "train":
            named = [int(examples.group_names[group].split()[1]) for group in examples.groups]
            assert places == named
            assert len(examples) == getattr(task, split) * min(5, pairs)
            assert sorted(set(places)) == (grid or list(range(pairs)))


def test_the_check_bites():
    task = KeyValueUuid(pairs=5, train=30, valid=4, test=6)
    examples = task.load("test")
    examples.labels[:] = (examples.labels + 1) % 16
    with pytest.raises(AssertionError):
        check_split(task, examples)


def record(pairs, gold):
    made = [[str(uuid.uuid4()), str(uuid.uuid4())] for _ in range(pairs)]
    return {"ordered_kv_records": made, "key": made[gold][0], "value": made[gold][1]}


@pytest.mark.parametrize("name", ["7.jsonl", "kv-retrieval-7_keys.jsonl"])
def test_published_files_are_read(tmp_path, name):
    records = [record(7, gold) for gold in (0, 3, 6)]
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in records))
    task = KeyValueUuid(pairs=7, train=5, valid=1, folder=str(tmp_path))
    examples = task.load("test")
    assert len(examples) == 3 * 5
    places = check_split(task, examples)
    for i, place in enumerate(places):
        pairs, asked = read_back(task, examples.rows[i])
        row = records[i % 3]
        assert asked == row["key"]
        # The others keep their order around the pair that moved.
        others = [tuple(pair) for pair in row["ordered_kv_records"] if pair[0] != asked]
        assert pairs == [*others[:place], (asked, row["value"]), *others[place:]]
    assert name in task.source


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (dict(key=str(uuid.UUID(int=7))), "got 7 and 0"),
        (dict(ordered_kv_records=[]), "got 0 and 0"),
        (dict(value=7), "needs 'value', text; got 7"),
    ],
    ids=str,
)
def test_a_bad_record_is_named(tmp_path, spoil, reason):
    rows = [record(7, 1), {**record(7, 1), **spoil}]
    path = tmp_path / "7.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(WeftError) as caught:
        KeyValueUuid(pairs=7, folder=str(tmp_path)).load("test")
    assert f"{path}, line 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_a_missing_file(tmp_path):
    (tmp_path / "75.jsonl").write_text("")
    with pytest.raises(WeftError, match=r"holds 75\.jsonl.*lost-in-the-middle"):
        KeyValueUuid(pairs=140, folder=str(tmp_path)).load("test")

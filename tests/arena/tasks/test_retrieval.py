"""Retrieval: both forms of files, documents stored once, and an overlap that can be counted."""

import json

import numpy as np
import pytest

from weft.arena.experiment import runs
from weft.arena.experiment.settings import experiment
from weft.arena.tasks import SPLITS, TASKS, Retrieval
from weft.arena.tasks.base import best_threshold
from weft.arena.tasks.retrieval import overlaps
from weft.errors import WeftError

DOCUMENTS = [
    "sparse attention reads few keys",
    "dense attention reads many keys",
    'it said "x" — naïve text',
    "wholly other words here",
]
PAIRS = {
    "train": [(0, 1, 1), (0, 3, 0), (1, 2, 0), (1, 0, 1)],
    "valid": [(2, 3, 0)],
    "test": [(3, 3, 1), (1, 3, 0), (0, 1, 1)],
}


def write_plain(folder):
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)
    (folder / "docs.jsonl").write_text(lines)
    for split, pairs in PAIRS.items():
        rows = [dict(zip(("first", "second", "label"), pair, strict=True)) for pair in pairs]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Retrieval(folder=str(folder))


def write_official(folder, literal):
    folder.mkdir(exist_ok=True)
    for split, name in {"train": "train", "valid": "eval", "test": "test"}.items():
        lines = []
        for first, second, label in PAIRS[split]:
            texts = [DOCUMENTS[i] for i in (first, second)]
            texts = [repr(text.encode()) for text in texts] if literal else texts
            lines.append("\t".join([f"{label}.0", f"P{first}", f"P{second}", *texts]) + "\n")
        (folder / f"new_aan_pairs.{name}.tsv").write_text("".join(lines))
    return Retrieval(folder=str(folder))


def content(examples):
    return [
        (examples.rows[i].tobytes().decode(), examples.second[i].tobytes().decode(), int(label))
        for i, label in enumerate(examples.labels)
    ]


WRITERS = {
    "plain": write_plain,
    "official": lambda folder: write_official(folder, literal=False),
    "literal": lambda folder: write_official(folder, literal=True),
}


@pytest.mark.parametrize("form", WRITERS)
def test_pairs_are_the_files(tmp_path, form):
    task = WRITERS[form](tmp_path)
    for split in SPLITS:
        expected = [(DOCUMENTS[a], DOCUMENTS[b], label) for a, b, label in PAIRS[split]]
        assert content(task.load(split)) == expected
    assert ("ACL Anthology" in task.source) == (form != "plain")


def test_documents_are_stored_once(tmp_path):
    train = write_plain(tmp_path).load("train")
    assert train.rows.tokens is train.second.tokens
    assert len(train.rows.tokens) == sum(len(text.encode()) for text in DOCUMENTS)


def test_batches_hold_both_documents(tmp_path):
    batch = write_plain(tmp_path).load("train").batch(np.array([1, 0]))
    for ids, valid, places in (
        (batch.x, batch.valid, (0, 0)),
        (batch.second, batch.second_valid, (3, 1)),
    ):
        for row, place in enumerate(places):
            text = DOCUMENTS[place].encode()
            assert bytes(ids[row, : len(text)].tolist()) == text
            assert valid is None or int(valid[row].sum()) == len(text)
    assert batch.y.tolist() == [0, 1]


def test_documents_are_cut(tmp_path):
    write_plain(tmp_path)
    train = Retrieval(folder=str(tmp_path), length=6).load("train")
    assert content(train)[0] == ("sparse", "dense ", 1)
    assert set(train.rows.lengths) == {6}


def test_words_in_common(tmp_path):
    train = write_plain(tmp_path).load("train")
    words = [
        {w for w in text.split() if len(w) > 3 and w.isalpha() and w.isascii()}
        for text in DOCUMENTS
    ]
    words[2] = {"said", "text"}
    expected = [len(words[a] & words[b]) / len(words[a] | words[b]) for a, b, _ in PAIRS["train"]]
    assert overlaps(train, np.arange(4)).tolist() == expected


def test_baselines_by_hand(tmp_path):
    # Overlap is 3/7 for the pair (0, 1), 1 for (3, 3), 0 for (1, 3): a threshold can be right.
    assert write_plain(tmp_path).baselines() == {"majority class": 1 / 3, "words in common": 1.0}


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_the_best_there_is(seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 6, 30) / 5, rng.integers(0, 2, 30)
    cuts = [*sorted(set(scores)), np.inf]
    best = max(((scores >= cut) == labels).mean() for cut in cuts)
    assert ((scores >= best_threshold(scores, labels)) == labels).mean() == best


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"first": 0, "second": 4, "label": 1}', "second is a row of docs.jsonl, 0 to 3; got 4"),
        ('{"first": -1, "second": 0, "label": 1}', "first is a row of docs.jsonl"),
        ('{"first": 0, "second": 1, "label": 3}', "a label is 0 to 1; got 3"),
        ('{"first": 0, "second": 1}', "needs 'label'"),
    ],
)
def test_a_bad_plain_line_is_named(tmp_path, line, reason):
    task = write_plain(tmp_path)
    with (tmp_path / "test.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(WeftError) as caught:
        task.load("test")
    assert f"{tmp_path / 'test.jsonl'}, line 4: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1.0\tA\tB\tone", "needs 5 columns"),
        (b"0.5\tA\tB\tone\ttwo", "a label is 0 to 1; got '0.5'"),
        (b"1\tA\tB\t\ttwo", "the text is empty"),
        (b"1\tA\tB\tb'half\ttwo", "begins as b'...' and is none"),
        (b"1\tA\tB\t\xff\ttwo", "not UTF-8"),
    ],
    ids=["columns", "label", "empty", "literal", "encoding"],
)
def test_a_bad_official_line_is_named(tmp_path, line, reason):
    task = write_official(tmp_path, literal=True)
    with (tmp_path / "new_aan_pairs.test.tsv").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(WeftError) as caught:
        task.load("test")
    assert f"{tmp_path / 'new_aan_pairs.test.tsv'}, line 4: " in str(caught.value)
    assert reason in str(caught.value)


def test_missing_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    (tmp_path / "retrieval").mkdir()
    with pytest.raises(WeftError, match=r"holds nothing.*new_aan_pairs.*docs\.jsonl"):
        TASKS.parse("retrieval").load("train")


@pytest.mark.parametrize(("rarely", "masks"), [(1e-3, {True}), (1.0, {True, False})])
def test_where_few_documents_are_short_whole_batches_carry_no_mask(
    tmp_path, monkeypatch, rarely, masks
):
    """Two of the four second documents of the training pairs have fewer than 30 bytes."""
    monkeypatch.setattr(runs, "RARELY_PADDED", rarely)
    write_plain(tmp_path)
    spec = f"retrieval(length=30, folder='{tmp_path}')"
    one = experiment({"task": {"spec": spec}, "training": {"graph": True, "batch": 2}})
    source = runs.run_of(one).stages[0].source
    assert {source.batch(step).second_valid is not None for step in range(12)} == masks

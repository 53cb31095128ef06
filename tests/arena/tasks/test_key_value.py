"""Key-value retrieval: answers by looking them up, keys held out, positions even."""

import numpy as np
import pytest

from weft.arena.tasks import SPLITS, TASKS, KeyValue
from weft.arena.tasks.key_value import buckets
from weft.errors import WeftError

TASKS_TRIED = [
    KeyValue(pairs=6, train=300, valid=40, test=80),
    KeyValue(pairs=5, key=3, symbols=9, values=4, query_first=True, train=200, valid=40, test=80),
    KeyValue(pairs=40, key=1, symbols=600, values=300, train=100, valid=20, test=30),
    KeyValue(pairs=1, key=4, symbols=8, train=50, valid=10, test=10),
]
each = pytest.mark.parametrize("task", TASKS_TRIED, ids=str)


def looked_up(task, row):
    """The keys, values, and what a dictionary answers: reads the words that `show` writes."""
    words = task.show(row).split()
    place = len(words) - 1 - words[::-1].index("?")
    asked = tuple(words[place + 1 :])
    if task.query_first:
        assert words[: 1 + task.key] == ["?", *asked]
    begin = (1 + task.key) * task.query_first
    triples = [words[i : i + task.key + 1] for i in range(begin, place, task.key + 1)]
    keys = [tuple(triple[:-1]) for triple in triples]
    answers = {key: triple[-1] for key, triple in zip(keys, triples, strict=True)}
    return keys, asked, answers


def check_split(task, examples):
    """Every answer is in the document, once; returns all keys and the places asked for."""
    every, places = set(), []
    for i in range(len(examples)):
        row = examples.rows[i]
        assert len(row) == task.length
        assert row.max() < task.vocab
        keys, asked, answers = looked_up(task, row)
        assert len(set(keys)) == len(keys) == task.pairs
        assert answers[asked] == f"v{examples.labels[i]}"
        place = keys.index(asked)
        assert examples.groups[i] == buckets(np.array([place]), task.pairs)[0][0]
        every |= set(keys)
        places.append(place)
    return every, places


@each
def test_answers_can_be_looked_up_and_keys_are_held_out(task):
    keys = {}
    for split in SPLITS:
        examples = task.load(split)
        assert len(examples) == getattr(task, split)
        keys[split], _ = check_split(task, examples)
    assert not keys["train"] & keys["valid"]
    assert not keys["train"] & keys["test"]
    assert not keys["valid"] & keys["test"]


def wrong_labels(examples):
    examples.labels[:] = np.roll(examples.labels, 1)


def wrong_groups(examples):
    examples.groups[:] = examples.groups[::-1].copy()


def wrong_tokens(examples):
    examples.rows.tokens[:4] = examples.rows.tokens[3:7]


@pytest.mark.parametrize("spoil", [wrong_labels, wrong_groups, wrong_tokens])
def test_the_check_bites(spoil):
    task = TASKS_TRIED[0]
    examples = task.load("test")
    spoil(examples)
    with pytest.raises((AssertionError, KeyError)):
        check_split(task, examples)


def test_places_and_values_are_even():
    task = KeyValue(pairs=10, values=5, train=1, valid=1, test=5000)
    examples = task.load("test")
    for seen, groups in ((examples.groups, 10), (examples.labels, 5)):
        counts = np.bincount(seen, minlength=groups)
        expected = 5000 / groups
        # Chi squared of 9 degrees of freedom passes 40 once in 100,000 times.
        assert ((counts - expected) ** 2 / expected).sum() < 40


def test_keys_are_even():
    """No key is favoured, although repeats are drawn again."""
    task = KeyValue(pairs=8, key=1, symbols=120, train=4000, valid=1, test=1)
    tokens = task.load("train").rows.tokens.reshape(4000, -1)
    counts = np.bincount(tokens[:, : 8 * 2 : 2].ravel(), minlength=120)
    pool = counts[counts > 0]
    assert 80 < len(pool) < 112
    expected = pool.mean()
    assert abs(pool - expected).max() < 5 * expected**0.5


@pytest.mark.parametrize("pairs", [1, 3, 10, 32, 75, 140])
def test_buckets_cover_all_places(pairs):
    groups, names = buckets(np.arange(pairs), pairs)
    assert groups[0] == 0
    assert groups[-1] == len(names) - 1 == min(pairs, 10) - 1
    assert set(np.diff(groups)) <= {0, 1}
    sizes = np.bincount(groups)
    assert sizes.max() - sizes.min() <= 1
    for place, group in enumerate(groups):
        numbers = [int(word) for word in names[group].split() if word.isdigit()]
        assert numbers[0] <= place <= numbers[-1]


def test_baselines():
    task = KeyValue(pairs=4, values=16, train=4000, valid=1, test=4000)
    found = task.baselines()
    assert abs(found["majority class"] - 1 / 16) < 0.02
    # The right pair is one of four; another pair has the same value by chance.
    assert abs(found["a value of the document"] - (1 / 4 + 3 / 4 / 16)) < 0.01


def test_the_length_is_derived():
    assert KeyValue(pairs=75, key=3).length == 75 * 4 + 4
    assert KeyValue(pairs=75, key=3, query_first=True).length == 75 * 4 + 8
    assert (KeyValue().vocab, KeyValue().classes) == (64 + 64 + 1, 64)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("key_value(pairs=0)", "at least 1"),
        ("key_value(values=1)", "at least 2"),
        ("key_value(symbols=5, key=1)", "raise symbols or key"),
        ("key_value(symbols=1000, key=3)", "lower symbols or key"),
        ("key_value(seed=-1)", "a seed is 0 or more"),
        ("key_value(lenght=3)", "has no setting"),
    ],
)
def test_wrong_settings(spec, reason):
    with pytest.raises(WeftError, match=reason):
        TASKS.parse(spec).load("test")

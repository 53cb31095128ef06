"""Splits are disjoint, complete, stratified, stable, and hold no text twice; twins fail."""

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.arena.tasks.base import SPLITS
from weft.arena.tasks.table.splits import leaks, made_splits, repeats, text_keys

SHARES = {"test": 0.1, "valid": 0.2}


def splits_of(texts, labels, seed=0, splitter=made_splits):
    return splitter(text_keys(texts, (), seed), np.array(labels), SHARES)


def check(texts, labels, splitter=made_splits):
    """All that made splits promise, on one table."""
    found = splits_of(texts, labels, splitter=splitter)
    assert len(found) == len(texts), "complete"
    assert set(found.tolist()) <= set(range(len(SPLITS))), "each row in one split"
    where = defaultdict(set)
    for text, split in zip(texts, found.tolist(), strict=True):
        where[text.strip()].add(split)
    assert all(len(splits) == 1 for splits in where.values()), "a text stays together"
    order = list(range(len(texts)))
    random.Random(1).shuffle(order)
    again = splits_of([texts[i] for i in order], [labels[i] for i in order], splitter=splitter)
    assert again.tolist() == [found[i] for i in order], "the order of rows does not matter"
    if len(where) == len(texts):
        check_shares(labels, found)


def check_shares(labels, found):
    for label, rows in Counter(labels).items():
        counts = Counter(found[np.array(labels) == label].tolist())
        assert counts[SPLITS.index("train")] >= 1, "every class is trained"
        for split, share in SHARES.items():
            count = counts[SPLITS.index(split)]
            assert count <= math.ceil(share * rows) + 1, "stratified"
            assert count >= math.floor(share * rows) - 1, "stratified"


tables = st.integers(2, 5).flatmap(
    lambda classes: st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, classes - 1)), min_size=1, max_size=120
    )
)


@settings(max_examples=80, deadline=None)
@given(rows=tables, repeated=st.booleans())
def test_made_splits(rows, repeated):
    """With texts that are all different, and with some that occur often."""
    texts = [f"text {i % 7 if repeated else (i, place)}" for place, (i, _) in enumerate(rows)]
    check(texts, [label for _, label in rows])


def by_row_number(keys, labels, shares):
    return (np.arange(len(keys)) % 10 == 0).astype(np.int8) * 2


def by_hash_alone(keys, labels, shares):
    return np.array([2 * (key[0] < 25) + (25 <= key[0] < 76) for key in keys], dtype=np.int8)


def keeps_no_texts_together(keys, labels, shares):
    return made_splits([key + bytes([i % 256]) for i, key in enumerate(keys)], labels, shares)


def forgets_a_row(keys, labels, shares):
    return made_splits(keys, labels, shares)[:-1]


def ignores_classes(keys, labels, shares):
    return made_splits(keys, np.zeros_like(labels), shares)


@pytest.mark.parametrize(
    ("twin", "promise"),
    [
        (by_row_number, "order"),
        (by_hash_alone, "stratified|trained"),
        (keeps_no_texts_together, "together"),
        (forgets_a_row, "complete"),
        (ignores_classes, "stratified|trained"),
    ],
)
def test_broken_twins_are_found(twin, promise):
    draw = random.Random(0)
    different = [f"text {i}" for i in range(400)]
    often = [f"text {draw.randrange(40)}" for _ in range(400)]
    labels = [int(draw.random() ** 4 * 30) for _ in range(400)]
    texts = often if twin is keeps_no_texts_together else different
    check(texts, labels)
    with pytest.raises(AssertionError, match=promise):
        check(texts, labels, twin)


def test_sizes_and_seeds():
    texts, labels = [f"text {i}" for i in range(1000)], [i % 4 for i in range(1000)]
    first, second = splits_of(texts, labels, 0), splits_of(texts, labels, 1)
    assert Counter(first.tolist()) == Counter(second.tolist()) == {0: 700, 1: 200, 2: 100}
    assert (first == second).mean() < 0.7, "another seed is another split"
    assert (splits_of(texts, labels, 0) == first).all()


def test_more_rows_move_few_others():
    texts, labels = [f"text {i}" for i in range(1010)], [i % 2 for i in range(1010)]
    before, after = splits_of(texts[:1000], labels[:1000]), splits_of(texts, labels)
    assert (before == after[:1000]).mean() > 0.98


def test_many_small_classes_still_fill_every_split():
    labels = [i // 4 for i in range(120)]
    found = splits_of([f"text {i}" for i in range(120)], labels)
    assert Counter(found.tolist())[2] == 12
    assert Counter(found.tolist())[1] == 24


def test_a_text_that_is_most_of_the_table_stays_in_train():
    texts = ["same"] * 300 + [f"text {i}" for i in range(100)]
    found = splits_of(texts, [0] * 400)
    assert (found[:300] == 0).all()
    assert Counter(found.tolist())[2] == 40


def test_pairs_are_the_same_in_either_order():
    a, b, c = text_keys(["x", "y", "x"], ["y", "x", "z"], 0)
    assert a == b != c
    assert text_keys([" x\n"], (), 0) == text_keys(["x"], (), 0) != text_keys(["x"], (), 1)


def test_leaks_leave_the_earlier_split():
    texts = ["a", "b", "c", "a", "b", "a"]
    splits = np.array([0, 0, 0, 1, 1, 2])
    found = leaks(text_keys(texts, (), 0), splits)
    assert found.tolist() == [True, True, False, True, False, False]


def test_repeats_are_counted():
    keys = text_keys(["a", "b", "a", "a", "c", "b"], (), 0)
    assert repeats(keys, np.array([0, 1, 0, 1, 0, 1])) == (3, 1)

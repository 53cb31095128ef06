"""Sources: pure functions of the step, every row once per epoch, fresh batches each epoch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import examples

from weft.errors import WeftError
from weft.training import Ordered, Shuffled
from weft.training.data.source import permutation


class Numbers:
    """Rows that are their own numbers."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def batch(self, index):
        return list(index)


sizes, batches = st.integers(1, 40), st.integers(1, 50)


def epochs(source, size, count):
    steps = -(-size * count // source.batch_size)
    flat = np.concatenate([source.index(step) for step in range(steps)])
    return [flat[size * e : size * (e + 1)] for e in range(count)]


def check_every_row_once(source, size):
    for epoch in epochs(source, size, 3):
        assert sorted(epoch) == list(range(size))


def check_pure(source):
    steps = [5, 0, 3, 5, 0]
    first = {}
    for step in steps:
        found = list(source.index(step))
        assert first.setdefault(step, found) == found


@given(size=sizes, batch=batches, seed=st.integers(0, 2**31))
def test_every_row_once_per_epoch(size, batch, seed):
    check_every_row_once(Shuffled(Numbers(size), batch, seed), size)


@given(size=sizes, batch=batches)
def test_a_batch_depends_on_the_step_alone(size, batch):
    check_pure(Shuffled(Numbers(size), batch))


@given(size=sizes, batch=batches, step=st.integers(0, 10**6))
def test_every_batch_is_full(size, batch, step):
    assert len(Shuffled(Numbers(size), batch).batch(step)) == batch


def test_larger_batches_hold_the_same_rows():
    small, large = Shuffled(Numbers(37), 8), Shuffled(Numbers(37), 32)
    for step in range(20):
        joined = np.concatenate([small.index(4 * step + part) for part in range(4)])
        assert np.array_equal(joined, large.index(step))


def test_epochs_and_seeds_differ():
    one, two, three = epochs(Shuffled(Numbers(30), 10, 0), 30, 3)
    assert any(a != b for a, b in zip(one, two, strict=True))
    assert any(a != b for a, b in zip(two, three, strict=True))
    assert list(Shuffled(Numbers(30), 10, 1).index(0)) != list(
        Shuffled(Numbers(30), 10, 0).index(0)
    )


def test_batches_are_composed_anew_each_epoch():
    """Long Range Arena's image pipeline shuffled batches, not rows."""
    source = Shuffled(Numbers(40), 10)
    groups = [{frozenset(source.index(4 * e + i)) for i in range(4)} for e in range(3)]
    assert all(not (one & two) for one, two in pairwise(groups))


class WithReplacement(Shuffled):
    def index(self, step):
        return np.random.default_rng(step).integers(0, len(self.rows), self.batch_size)


class Remembering(Shuffled):
    def index(self, step):
        object.__setattr__(self, "seed", self.seed + 1)
        return super().index(step)


def test_the_checks_bite():
    with pytest.raises(AssertionError):
        check_every_row_once(WithReplacement(Numbers(20), 5), 20)
    with pytest.raises(AssertionError):
        check_pure(Remembering(Numbers(20), 5))


def test_nobody_can_spoil_the_order():
    with pytest.raises(ValueError, match="read-only"):
        permutation(10, 0, 0)[0] = 3


@given(size=sizes, batch=batches)
def test_ordered_gives_every_row_once_in_order(size, batch):
    source = Ordered(Numbers(size), batch)
    found = list(source)
    assert len(found) == len(source)
    assert [row for rows in found for row in rows] == list(range(size))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), batch=batches)
def test_rows_of_like_length_share_a_batch_the_longest_first(lengths, batch):
    rows = Numbers(len(lengths))
    rows.lengths = np.array(lengths)
    found = [row for group in Ordered(rows, batch) for row in group]
    assert sorted(found) == list(range(len(lengths))), "every row once"
    assert [lengths[row] for row in found] == sorted(lengths, reverse=True)


def test_real_rows_come_out():
    data = examples()
    source = Shuffled(data, 4)
    batch = source.batch(3)
    for row, number in enumerate(source.index(3)):
        size = data.rows.lengths[number]
        assert list(batch.x[row][:size]) == list(data.rows[number])


def test_empty_splits_and_batches_are_refused():
    with pytest.raises(WeftError, match="empty"):
        Shuffled(Numbers(0), 4)
    with pytest.raises(WeftError, match="batch_size"):
        Ordered(Numbers(3), 0)

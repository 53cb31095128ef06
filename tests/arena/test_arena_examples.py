"""Splits in memory against plain lists."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.arena.data.examples import Examples, TokenRows
from weft.errors import WeftError

SEQUENCES = st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=9), min_size=1, max_size=6)


def plain_batch(sequences, index, length, width=None):
    """The definition: cut, then fill up with zeros that are not valid."""
    cut = [sequences[i][:length] for i in index]
    n = max(map(len, cut)) if width is None else width
    ids = [row + [0] * (n - len(row)) for row in cut]
    valid = [[True] * len(row) + [False] * (n - len(row)) for row in cut]
    return ids, valid


def check_batch(rows, sequences, index, length, width=None):
    ids, valid = rows.padded(np.array(index), length, width)
    expected_ids, expected_valid = plain_batch(sequences, index, length, width)
    assert ids.tolist() == expected_ids
    if valid is None:
        assert all(map(all, expected_valid))
    else:
        assert valid.tolist() == expected_valid


@given(sequences=SEQUENCES, length=st.integers(1, 10), data=st.data())
def test_batches_are_cut_and_padded(sequences, length, data):
    index = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=5))
    width = data.draw(st.sampled_from([None, length]))
    check_batch(TokenRows.of(sequences), sequences, index, length, width)


@given(sequences=SEQUENCES, data=st.data())
def test_rows_may_share_a_sequence(sequences, data):
    pick = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=8))
    rows = TokenRows.of(sequences, np.array(pick))
    shared = [sequences[i] for i in pick]
    assert len(rows) == len(pick)
    assert rows.lengths.tolist() == list(map(len, shared))
    assert [rows[i].tolist() for i in range(len(rows))] == shared
    check_batch(rows, shared, range(len(pick)), 10)


@pytest.mark.parametrize(
    "wrong",
    [
        TokenRows.of([[1, 2, 9], [4]]),
        TokenRows.of([[1, 2], [3, 4]]),
        TokenRows.of([[1, 2, 3], [4]], np.array([1, 0])),
    ],
    ids=["another token", "another start", "another row"],
)
def test_the_check_bites(wrong):
    with pytest.raises(AssertionError):
        check_batch(wrong, [[1, 2, 3], [4]], [0, 1], 3)


def test_zero_is_a_token():
    ids, valid = TokenRows.of([b"\0\0", b"\0\1"]).padded(np.array([0, 1]), 2)
    assert ids.tolist() == [[0, 0], [0, 1]]
    assert valid is None


def test_a_batch_has_all_parts():
    examples = Examples(
        TokenRows.of([b"ab", b"c"]),
        2,
        labels=np.array([1, 0]),
        second=TokenRows.of([b"x", b"yz"]),
        groups=np.array([0, 1]),
        group_names=("a", "b"),
    )
    batch = examples.batch(np.array([1, 0]))
    assert batch.x.tolist() == [[99, 0], [97, 98]]
    assert batch.valid.tolist() == [[True, False], [True, True]]
    assert batch.second.tolist() == [[121, 122], [120, 0]]
    assert batch.second_valid.tolist() == [[True, True], [True, False]]
    assert (batch.y.tolist(), batch.group.tolist()) == ([0, 1], [1, 0])
    assert batch.x.dtype == batch.y.dtype == torch.int64


def test_read_only_arrays_make_batches():
    rows = TokenRows.of([b"ab", b"c"])
    labels = np.array([1, 0])
    for array in (rows.tokens, rows.starts, labels):
        array.setflags(write=False)
    batch = Examples(rows, 2, labels=labels).batch(np.array([0]))
    batch.x.add_(1)
    assert rows[0].tolist() == [97, 98]


def test_wrong_parts_are_refused():
    with pytest.raises(WeftError, match="labels has one entry for each row; got 1 for 2 rows"):
        Examples(TokenRows.of([b"a", b"b"]), 1, labels=np.array([0]))
    with pytest.raises(WeftError, match="rows begin at 0 and end with the tokens"):
        TokenRows(np.zeros(3, dtype=np.uint8), np.array([0, 2]))


def test_examples_say_how_long_their_rows_are():
    """Cut to the task's length, both documents of a pair together."""
    rows, second = TokenRows.of([b"abcd", b"c", b"ab"]), TokenRows.of([b"x", b"yz", b"uvwxyz"])
    assert Examples(rows, 3).lengths.tolist() == [3, 1, 2]
    assert Examples(rows, 3, second=second).lengths.tolist() == [4, 3, 5]


@given(size=st.integers(1, 6), count=st.integers(1, 5), data=st.data())
def test_rows_of_one_length_are_a_matrix(size, count, data):
    """The short way, and the long one: cut, whole, and padded beyond the rows' length."""
    sequences = [[10 * i + j for j in range(size)] for i in range(count)]
    index = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
    length = data.draw(st.integers(1, 8))
    rows = TokenRows.of(sequences)
    assert rows.table.shape == (count, size)
    for width in (None, length):
        check_batch(rows, sequences, index, length, width)

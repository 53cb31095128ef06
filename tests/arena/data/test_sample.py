"""Samples of a split: the same rows every time, with what belongs to them."""

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.data.sample import sample

LENGTHS = np.arange(3, 43)
ROWS = Examples(
    TokenRows.of([np.full(n, n, dtype=np.uint8) for n in LENGTHS]),
    64,
    labels=LENGTHS % 3,
    groups=LENGTHS % 2,
    group_names=("even", "odd"),
)


def numbers(rows):
    return rows.batch(np.arange(len(rows))).x[:, 0].tolist()


def test_samples_are_nested_and_keep_what_rows_say():
    few, more = sample(ROWS, 7), sample(ROWS, 20)
    assert numbers(few) == numbers(sample(ROWS, 7))
    assert set(numbers(few)) < set(numbers(more)) < set(LENGTHS.tolist())
    assert few.lengths.tolist() == numbers(few)
    assert few.group_names == ("even", "odd")
    batch = few.batch(np.array([2, 0]))
    assert (batch.x[:, 0] % 3 == batch.y).all()
    assert (batch.x[:, 0] % 2 == batch.group).all()


def test_no_number_or_a_large_one_is_everything():
    assert sample(ROWS, None) is ROWS
    assert sample(ROWS, 40) is ROWS

"""What rows and columns draw: products keep the right share, and no two rows fall together."""

import numpy as np
import pytest
import torch

from weft.kernels.dropout import Dropout

LINES, N, M = 8, 400, 300
RATES = (0.1, 0.5)


def drawn(rate=0.1, seed=7, part=0):
    """Numbers of rows (lines, n) and columns (lines, m)."""
    numbers = Dropout(rate, torch.arange(1, 17) * seed).numbers(part, LINES, N, M)
    return [x.numpy().view(np.uint32) for x in numbers]


def excess(rows, cols, rate):
    """Kept or not, (lines, n, m), as deviations of mean 0 and variance 1 if all is independent."""
    with np.errstate(over="ignore"):
        kept = rows[:, :, None] * cols[:, None, :] >= np.uint32(rate * 2**32)
    return (kept - (1 - rate)) / np.sqrt(rate * (1 - rate))


def check(rows, cols, rate):
    off = excess(rows, cols, rate)
    assert abs(off.mean()) < 4 / np.sqrt(off.size), "the share that is kept"
    for one in (off, off.transpose(0, 2, 1)):  # rows, columns
        count = one.shape[2]
        assert (abs(one.sum(2)) < 5.5 * np.sqrt(count)).all(), "one keeps more than others"
        pairs = one @ one.transpose(0, 2, 1) / np.sqrt(count)
        pairs = pairs[:, *np.triu_indices(one.shape[1], 1)]
        assert abs(pairs).max() < 7.5, "two fall together"
        assert abs(pairs.std() - 1) < 0.02, "two fall together, now and then"
    lines = off.reshape(LINES, -1) @ off.reshape(LINES, -1).T / np.sqrt(N * M)
    assert abs(lines[np.triu_indices(LINES, 1)]).max() < 5, "lines fall together"


@pytest.mark.parametrize("rate", RATES)
def test_weights_fall_as_if_by_chance(rate):
    check(*drawn(rate), rate)


BROKEN = {
    "places themselves": lambda x: np.broadcast_to(np.arange(1, x.shape[1] + 1), x.shape),
    "odd multiples": lambda x: np.arange(x.shape[1]) * 2_654_435_761 + x[:, :1] % 97,
    "the same for all lines": lambda x: np.broadcast_to(x[:1], x.shape),
    "too few bits": lambda x: x >> 20,
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", BROKEN)
def test_worse_numbers_are_noticed(name, rate):
    rows, cols = (BROKEN[name](x.astype(np.int64)).astype(np.uint32) for x in drawn(rate))
    with pytest.raises(AssertionError):
        check(rows, cols, rate)


def test_rows_are_odd_and_parts_seeds_and_lines_differ():
    rows, cols = drawn()
    assert (rows % 2 == 1).all()
    assert len(np.unique(rows)) > 0.999 * rows.size
    assert len(np.unique(cols)) > 0.999 * cols.size
    for other in (drawn(part=1), drawn(seed=8)):
        assert (rows == other[0]).mean() < 0.01
        assert (cols == other[1]).mean() < 0.01


def test_numbers_are_drawn_once_for_both_ways():
    drop = Dropout(0.1, torch.arange(1, 17))
    assert drop.numbers(0, 2, 5, 7)[0] is drop.numbers(0, 2, 5, 7)[0]
    assert drop.numbers(0, 2, 5, 7)[0].shape == (2, 5)
    assert not torch.equal(drop.numbers(0, 2, 5, 7)[0], drop.numbers(1, 2, 5, 7)[0])
    assert Dropout.of(0.0, torch.device("cpu")) is None

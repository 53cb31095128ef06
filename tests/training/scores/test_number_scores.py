"""Scores of a regression, against numpy; seen to fail with the mean taken of the predictions."""

import numpy as np
import pytest
import torch
from tiny_runs import examples, stage

from weft.objectives import Regress
from weft.training import Ordered, score
from weft.training.scores.number_scores import NumberTally


def test_sums_over_batches_equal_numpy():
    torch.manual_seed(0)
    guess, y = torch.randn(100, 1) + 3, torch.randn(100) * 2 + 3
    tally = NumberTally(guess)
    for part in (slice(0, 1), slice(1, 70)):
        tally.add(guess[part], y[part])
    other = NumberTally(guess)
    other.add(guess[70:], y[70:])
    tally.join(other)
    a, b = guess[:, 0].double().numpy(), y.double().numpy()
    found = tally.scores().row(scale=10.0)
    assert found["mean absolute error"] == pytest.approx(10 * np.abs(a - b).mean())
    assert found["root mean squared error"] == pytest.approx(10 * np.sqrt(((a - b) ** 2).mean()))
    assert found["R²"] == pytest.approx(1 - ((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum())


def test_labels_that_are_all_alike_have_no_r2():
    tally = NumberTally(torch.zeros(3, 1))
    tally.add(torch.zeros(3, 1), torch.full((3,), 2.0))
    assert tally.scores().r2 is None


def test_a_regression_is_scored_with_them():
    own = stage(Regress())
    found = score(own.model.build(), Ordered(examples(), 4), Regress())
    assert found.classes is None
    assert found.numbers.squared == pytest.approx(found.score)

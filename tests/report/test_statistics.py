"""Means, spreads and intervals, against numpy and against the definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.read.statistics import Estimate, differ, estimate, quantile, smoothed, wilson

numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=2, max_size=20))
def test_mean_and_deviation(values):
    found = estimate(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-4, rel=1e-6)


def test_what_is_missing_does_not_count():
    assert estimate([None, float("nan"), 0.5]) == Estimate(0.5, None, 1)
    assert estimate([None]) is None
    assert estimate([]) is None


def student(t, freedom):
    """P(T < t), integrated from the density."""
    x = np.linspace(-400.0, t, 2_000_001)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    log = scale - 0.5 * math.log(freedom * math.pi)
    density = np.exp(log - (freedom + 1) / 2 * np.log1p(x * x / freedom))
    return float(((density[1:] + density[:-1]) / 2 * np.diff(x)).sum())


@pytest.mark.parametrize("freedom", [2, 3, 5, 10, 15, 20, 30, 120])
def test_the_table_of_student(freedom):
    assert student(quantile(freedom), freedom) == pytest.approx(0.975, abs=2e-4)


def test_between_its_entries_it_is_never_too_small():
    assert quantile(12.4) == quantile(10)
    assert quantile(29) == quantile(20)
    assert quantile(1e9) == quantile(120)
    assert quantile(0.5) == quantile(1)


def test_differences_within_the_spread():
    assert differ(estimate([0.40, 0.42, 0.41]), estimate([0.41, 0.43, 0.40])) is False
    assert differ(estimate([0.40, 0.41, 0.405]), estimate([0.50, 0.51, 0.505])) is True
    # Two seeds say little: t with one degree of freedom is 12.7.
    assert differ(estimate([0.40, 0.42]), estimate([0.44, 0.46])) is False
    assert differ(estimate([0.4]), estimate([0.9, 0.91])) is None
    assert differ(estimate([0.5, 0.5]), estimate([0.4, 0.4])) is True
    assert differ(estimate([0.5, 0.5]), estimate([0.5, 0.5])) is False


def test_equal_means_differ_about_one_time_in_twenty():
    draw = np.random.default_rng(0)
    pairs = draw.normal(0.4, 0.01, (4000, 2, 3))
    share = np.mean([differ(estimate(a), estimate(b)) for a, b in pairs])
    assert 0.01 < share < 0.055


@pytest.mark.parametrize(("right", "count"), [(8, 10), (0, 20), (20, 20), (181, 512)])
def test_wilson_solves_its_equation(right, count):
    """Both ends are the shares p at which |right/count − p| is 1.96 standard errors."""
    for end in wilson(right, count):
        error = math.sqrt(end * (1 - end) / count)
        assert abs(right / count - end) == pytest.approx(1.96 * error, abs=1e-9)


def test_wilson_without_trials():
    assert wilson(0, 0) == (0.0, 1.0)


def test_smoothing_is_a_mean_of_neighbours():
    draw = np.random.default_rng(1).normal(size=40)
    found = smoothed(list(draw), 9)
    assert found[4:-4] == pytest.approx(np.convolve(draw, np.ones(9) / 9, "valid"))
    line = [2.0 * at for at in range(30)]
    assert smoothed(line, 9) == pytest.approx(line)  # no lag, also at the ends
    assert smoothed([1.0], 9) == [1.0]
    assert smoothed([], 9) == []

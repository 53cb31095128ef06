"""From numbers to pixels: in order, within bounds, with round numbers beside them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.charts.scales import (
    Scale,
    alike,
    clock,
    clock_ticks,
    domain,
    doubling_ticks,
    plain,
    thinned,
    tokens,
)

finite = st.floats(-1e12, 1e12)
positive = st.floats(1e-9, 1e12)


@given(st.lists(finite, min_size=1, max_size=9), st.integers(2, 9))
def test_even_ticks(values, most):
    low, high = domain(values)
    ticks = Scale(low, high, 0, 100).ticks(most)
    assert 2 <= len(ticks) <= most + 9
    assert ticks == sorted(ticks)
    room = (high - low) * 1e-6
    assert low - room <= ticks[0] <= ticks[-1] <= high + room


@given(st.lists(positive, min_size=1, max_size=9), st.integers(2, 9))
def test_log_ticks(values, most):
    low, high = domain(values, log=True)
    ticks = Scale(low, high, 0, 100, log=True).ticks(most)
    assert len(ticks) >= 2
    assert ticks == sorted(ticks)
    assert low * 0.999 <= ticks[0] <= ticks[-1] <= high * 1.001


@given(st.lists(positive, min_size=2, max_size=9), st.booleans())
def test_all_values_are_inside_and_in_order(values, log):
    scale = Scale(*domain(values, log=log), 10, 90, log)
    pixels = [scale(value) for value in sorted(values)]
    assert pixels == sorted(pixels)
    assert all(10 <= pixel <= 90 for pixel in pixels)


def test_a_value_outside_lies_on_the_border():
    scale = Scale(0, 1, 100, 0)
    assert (scale(-5), scale(0.25), scale(7)) == (100, 75, 0)


def test_air_ends_where_values_must():
    assert domain([0.5, 1.0], within=(0.0, 1.0))[1] == 1.0
    assert domain([0.5, 1.2], within=(0.0, 1.0))[1] > 1.2  # impossible, and therefore shown


def test_clock():
    assert clock_ticks(0, 190, 4) == [0, 120]
    assert clock_ticks(0, 190, 5) == [0, 60, 120, 180]
    assert clock_ticks(0, 7300, 4) == [0, 3600, 7200]
    assert clock_ticks(0.0, 2.0, 5) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [clock(value) for value in (0.25, 45, 90, 5400)] == [
        "0.25 s",
        "45 s",
        "1.5 min",
        "1.5 h",
    ]
    assert len(clock_ticks(0, 1e9, 4)) < 50


def test_doubling():
    mib = 2**20
    assert doubling_ticks(90 * mib, 1100 * mib, 6) == [128 * mib, 256 * mib, 512 * mib, 1024 * mib]


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [(plain, 1500, "1.5k"), (plain, 2e6, "2M"), (tokens, 4096, "4,096"), (tokens, 16384, "16K")],
)
def test_short_numbers(form, value, text):
    assert form(value) == text


def test_numbers_of_an_axis_are_alike():
    assert alike([0.4, 0.42, 0.44]) == ["0.40", "0.42", "0.44"]
    assert alike([4.165, 4.1675, 4.17]) == ["4.1650", "4.1675", "4.1700"]
    assert alike([0, 500, 1000]) == ["0", "500", "1k"]
    assert len(set(alike([1e-7, 2e-7, 3e-7]))) == 3


def test_thinning_keeps_both_ends():
    points = [(float(at), 0.0) for at in range(10_001)]
    few = thinned(points, 100)
    assert len(few) == 100
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert thinned(points[:5], 100) == points[:5]

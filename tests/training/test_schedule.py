"""Schedules against their closed formulas."""

from math import cos, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.training import TrainingSettings
from weft.training.schedule import learning_rate

BASE = {"lr": 0.05, "steps": 200, "warmup": 20}


def rate(t, **changes):
    return learning_rate(TrainingSettings(**{**BASE, **changes}), t)


@pytest.mark.parametrize("t", [1, 2, 19, 20, 21, 100, 199, 200, 250])
def test_formulas(t):
    rise, way = min(1, t / 20), min(1, max(0, (t - 20) / 180))
    assert rate(t, schedule="constant") == pytest.approx(0.05 * rise)
    assert rate(t, schedule="rsqrt") == pytest.approx(0.05 * rise / sqrt(max(t, 20)))
    assert rate(t, schedule="cosine") == pytest.approx(0.05 * rise * 0.5 * (1 + cos(pi * way)))
    assert rate(t, schedule="linear") == pytest.approx(0.05 * rise * (1 - way))


def test_lra_peaks_at_base_over_root_of_warmup():
    peak = max(rate(t, schedule="rsqrt", lr=0.05, warmup=1000, steps=5000) for t in range(1, 5001))
    assert peak == pytest.approx(0.05 / sqrt(1000))


def test_no_warmup_starts_at_the_top():
    assert rate(1, warmup=0, schedule="constant") == 0.05
    assert rate(1, warmup=0, schedule="rsqrt") == 0.05


def test_hold_waits_and_final_remains():
    held = {"schedule": "linear", "hold": 0.5, "final": 0.1}
    assert rate(110, **held) == 0.05  # 20 + half of 180
    assert rate(155, **held) == pytest.approx(0.05 * (0.1 + 0.9 * 0.5))
    assert rate(200, **held) == pytest.approx(0.005)
    assert rate(300, **held) == pytest.approx(0.005)


def test_cycles_fall_several_times():
    rates = [rate(t, schedule="cosine", cycles=3, warmup=0, steps=300) for t in range(1, 301)]
    for end in (100, 200, 300):
        assert rates[end - 1] == pytest.approx(0, abs=1e-12)
    for start in (101, 201):
        assert rates[start - 1] > 0.0499


def test_warmup_longer_than_the_run_never_falls():
    rates = [rate(t, schedule="cosine", warmup=500) for t in range(1, 201)]
    assert rates == sorted(rates)


@given(
    t=st.integers(1, 400),
    warmup=st.integers(0, 300),
    hold=st.floats(0, 1),
    final=st.floats(0, 1),
    cycles=st.integers(1, 5),
    schedule=st.sampled_from(["constant", "rsqrt", "cosine", "linear"]),
)
def test_rates_stay_between_0_and_base(t, warmup, hold, final, cycles, schedule):
    settings = {"warmup": warmup, "hold": hold, "final": final, "cycles": cycles}
    assert 0 <= rate(t, schedule=schedule, **settings) <= 0.05

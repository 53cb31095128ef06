"""Speed and memory: medians that a slow start and a hiccup do not move."""

import pytest
import torch

from weft.training import speed
from weft.training.speed import Memory, Stopwatch

CPU = torch.device("cpu")


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(speed, "time", made)
    return made


def laps(clock, *seconds, steps=1, tokens=100):
    watch = Stopwatch(CPU)
    for each in seconds:
        watch.go()
        for _ in range(steps):
            watch.count(tokens)
        clock.now += each
        watch.lap()
        clock.now += 1000.0  # an evaluation
    return watch


def test_the_median_after_warm_up(clock):
    watch = laps(clock, 60.0, 9.0, 0.5, 0.5, 30.0, 0.5, 0.4)
    assert watch.steps_per_second == pytest.approx(2.0)
    assert watch.tokens_per_second == pytest.approx(200.0)


def test_laps_of_several_steps(clock):
    watch = laps(clock, 1.0, 1.0, 2.0, 2.0, 2.0, steps=10)
    assert watch.steps_per_second == pytest.approx(5.0)
    assert watch.tokens_per_second == pytest.approx(500.0)


def test_few_laps_are_better_than_none(clock):
    assert laps(clock, 0.5).steps_per_second == pytest.approx(2.0)
    assert laps(clock).steps_per_second is None
    assert laps(clock).tokens_per_second is None


def test_a_lap_without_steps_is_none(clock):
    watch = laps(clock, 0.5)
    watch.go()
    watch.lap()
    assert len(watch.laps) == 1


def test_memory_is_growth_and_the_largest_of_all_lives(monkeypatch):
    peaks = iter([1000, 1500, 1200])
    monkeypatch.setattr(speed, "process_peak", lambda: next(peaks))
    assert Memory(CPU).peak == 500
    monkeypatch.setattr(speed, "process_peak", lambda: 1000)
    assert Memory(CPU, before=700).peak == 700

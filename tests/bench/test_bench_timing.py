"""Turns, failures and quartiles; no test asserts a time."""

import statistics

import pytest
import torch

from weft.bench import timing
from weft.bench.run import _spread, _with_ratios
from weft.bench.timing import forward, forward_backward, measure


def test_cases_take_turns():
    order = []
    found = measure({name: lambda name=name: order.append(name) for name in "abc"}, 4, "cpu")
    assert order == list("abc") * 5  # a warm-up, then four rounds
    assert {name: len(seconds) for name, seconds in found.seconds.items()} == dict.fromkeys(
        "abc", 4
    )
    assert all(value >= 0 for seconds in found.seconds.values() for value in seconds)


def test_a_case_that_raises_leaves_the_turns():
    order = []

    def breaks_later():
        order.append("b")
        if order.count("b") > 2:
            raise RuntimeError("out of\nmemory")

    def breaks_at_once():
        raise MemoryError

    calls = {"a": lambda: order.append("a"), "b": breaks_later, "c": breaks_at_once}
    found = measure(calls, 3, "cpu")
    assert order == ["a", "b", "a", "b", "a", "b", "a"]
    assert found.failed == {"b": "RuntimeError: out of memory", "c": "MemoryError"}
    assert set(found.seconds) == {"a"}


def test_the_clock_is_read_around_each_call(monkeypatch):
    now = iter([0.0, 1.0, 10.0, 10.5, 20.0, 22.0])  # the first pair is the warm-up
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    assert measure({"a": lambda: None}, 2, "cpu").seconds == {"a": [0.5, 2.0]}


def test_a_case_too_slow_for_turns_is_timed_once_when_warm(monkeypatch):
    order, now = [], [0.0]
    costs = {"quick": iter([99.0, 1.0, 1.0, 1.0]), "slow": iter([99.0, 7.0])}

    def call(name):
        order.append(name)
        now[0] += next(costs[name])

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    found = measure({name: lambda name=name: call(name) for name in costs}, 2, "cpu")
    assert order == ["quick", "quick", "slow", "slow", "quick", "quick"]
    assert found.seconds == {"quick": [1.0, 1.0], "slow": [7.0]}


def test_progress_is_told_once_a_round():
    told = []
    measure({"a": lambda: None}, 5, "cpu", progress=lambda: told.append(1))
    assert len(told) == 5


def test_forward_takes_no_gradients_and_backward_takes_all():
    module = torch.nn.Linear(3, 3)
    x = torch.randn(2, 4, 3, requires_grad=True)
    assert not forward(module, (x,))().requires_grad
    gradients = forward_backward(module, (x,))()
    assert [tuple(g.shape) for g in gradients] == [(2, 4, 3), (3, 3), (3,)]
    assert x.grad is None


def test_quartiles():
    values = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0]
    found = _spread(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    assert found["median_s"] == statistics.median(values) == 3.5
    assert (found["lower_quartile_s"], found["upper_quartile_s"]) == (low, high) == (2.25, 4.75)
    assert set(_spread([2.0]).values()) == {2.0}


def test_ratios_are_to_dense_of_the_same_kind():
    rows = [
        {"case": "full", "kind": "layer", "t": 4.0, "ratio_to_dense": None},
        {"case": "a", "kind": "layer", "t": 1.0, "ratio_to_dense": None},
        {"case": "r", "kind": "rival", "t": 8.0, "ratio_to_dense": None},
        {"case": "full", "kind": "core", "t": 2.0, "ratio_to_dense": None},
        {"case": "a", "kind": "core", "t": 1.0, "ratio_to_dense": None},
        {"case": "p", "kind": "pattern", "t": 3.0, "ratio_to_dense": None},
        {"case": "b", "kind": "core", "t": None, "ratio_to_dense": None},
    ]
    found = [row["ratio_to_dense"] for row in _with_ratios(rows, "t")]
    assert found == [1.0, 0.25, 2.0, 1.0, 0.5, 1.5, None]
    alone = _with_ratios([{"case": "a", "kind": "layer", "t": 1.0, "ratio_to_dense": None}], "t")
    assert alone[0]["ratio_to_dense"] is None


@pytest.mark.parametrize("text", ["", "x" * 1000])
def test_reasons_are_one_short_line(text):
    reason = timing.why(ValueError(text))
    assert reason.startswith("ValueError")
    assert len(reason) < 350

"""One place says what a metric means; trivial rules are beaten beyond chance or not at all."""

import numpy as np
import pytest

from weft.metrics import best_of, clearly_better, higher_is_better, metric, standard_error
from weft.objectives import OBJECTIVES


def test_every_metric_of_an_objective_is_known():
    for name in OBJECTIVES:
        own = getattr(OBJECTIVES[name], "metric", "loss")
        if not isinstance(own, property):  # distillation has the metric of what it distils
            assert own in {*_known()}, name


def _known():
    from weft.metrics import METRICS

    return METRICS


@pytest.mark.parametrize(
    ("name", "rising"),
    [("accuracy", True), ("bits per byte", False), ("bits per pixel", False), ("R²", True),
     ("mean squared error", False), ("calibration error", False), ("loss", False)],
)  # fmt: skip
def test_directions(name, rising):
    assert higher_is_better(name) is rising
    assert metric(name).direction == ("higher is better" if rising else "lower is better")


def test_the_error_of_a_share_is_that_of_a_binomial_draw():
    draw = np.random.default_rng(0)
    shares = draw.binomial(200, 0.3, 20_000) / 200
    assert standard_error("accuracy", 0.3, 200) == pytest.approx(shares.std(), rel=0.02)
    assert standard_error("bits per byte", 2.0, 200) == 0.0


def test_the_error_of_a_gini_is_that_of_drawn_scores():
    draw = np.random.default_rng(0)
    up, down = draw.normal(0.5, 1, (4000, 60, 1)), draw.normal(0, 1, (4000, 1, 60))
    ginis = 2 * (up > down).mean((1, 2)) - 1
    assert standard_error("gini", ginis.mean(), 120) == pytest.approx(ginis.std(), rel=0.05)


def test_a_rule_is_beaten_beyond_chance():
    assert not clearly_better("gini", 0.277, {"number of events": 0.131}, 33)
    assert clearly_better("gini", 0.277, {"number of events": 0.131}, 3300)
    rules = {"majority class": 0.25, "length": 0.3}
    assert best_of("accuracy", rules) == ("length", 0.3)
    assert best_of("mean squared error", rules) == ("majority class", 0.25)
    assert not clearly_better("accuracy", 0.31, rules, 100)
    assert clearly_better("accuracy", 0.31, rules, 1_000_000)
    assert clearly_better("accuracy", 0.5, rules, 100)
    assert not clearly_better("accuracy", 0.5, rules, 100, spread=0.21)
    assert clearly_better("bits per byte", 2.0, {"unigram": 3.1}, 100)
    assert not clearly_better("bits per byte", 3.2, {"unigram": 3.1}, 100)

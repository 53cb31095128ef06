"""Exit rules against their definitions, and the conformal guarantee in simulation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.models.exits.policy import (
    EXITS,
    Confidence,
    Conformal,
    Never,
    Patience,
    conformal_thresholds,
    evidence,
    logistic,
    quantile,
    temperature,
)


def answers(*rows, classes=3, sure=3.0):
    """Scores whose best class at each exit is the given one."""
    return torch.nn.functional.one_hot(torch.tensor(rows), classes).double() * sure


def history(rows=200, exits=4, classes=3, seed=0):
    """Noisy exits that come nearer to a truth, and the truth."""
    draw = torch.Generator().manual_seed(seed)
    truth = torch.randn(rows, 1, classes, generator=draw, dtype=torch.float64)
    noise = torch.randn(rows, exits, classes, generator=draw, dtype=torch.float64)
    spread = torch.linspace(2.0, 0.1, exits, dtype=torch.float64)[:, None]
    return 2 * truth + spread * noise, truth[:, 0].argmax(-1)


def leaves_at(policy, rows):
    """The first exit, from 1, at which each row leaves; the last if nowhere else."""
    exits = rows.shape[1]
    found = torch.full((len(rows),), exits)
    for k in range(exits - 1, 0, -1):
        found[policy.leaves(rows[:, :k])] = k
    return found


def pabee(predictions, patience):
    """The published loop, one row at a time: a count that grows on agreement, else returns to 0."""
    count, last = 0, None
    for layer, answer in enumerate(predictions, start=1):
        count = count + 1 if answer == last else 0
        last = answer
        if count == patience:
            return layer
    return len(predictions)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=9), st.integers(1, 9))
def test_patience_is_the_published_loop(predictions, patience):
    rows = answers(predictions)
    assert leaves_at(Patience(patience), rows).tolist() == [pabee(predictions, patience)]


def test_patience_for_numbers():
    values = torch.tensor([[1.0, 5.0, 5.05, 5.04, 9.0]])[..., None]
    assert leaves_at(Patience(1, tolerance=0.1), values).tolist() == [3]
    assert leaves_at(Patience(2, tolerance=0.1), values).tolist() == [4]
    assert leaves_at(Patience(2, tolerance=0.001), values).tolist() == [5]


def test_confidence_is_the_softmax_at_its_temperature():
    rows, _ = history()
    rule = Confidence(0.7, temperatures=(2.0, 1.0, 0.5, 1.0))
    for k, value in enumerate(rule.temperatures, start=1):
        z = rows[:, k - 1].numpy() / value
        chance = np.exp(z - z.max(-1, keepdims=True))
        best = chance.max(-1) / chance.sum(-1)
        assert rule.leaves(rows[:, :k]).tolist() == (best > 0.7).tolist()


def test_a_threshold_of_one_lets_nobody_leave():
    certain = answers([0, 0], [1, 1], sure=1e6)  # a softmax of exactly 1
    assert not Confidence(1.0).leaves(certain).any()
    assert Confidence(0.999).leaves(certain).all()
    assert not Never().leaves(certain).any()


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_is_the_most_likely_one(scale):
    rows, y = history(rows=400)
    scores = rows[:, 1] * scale
    found = temperature(scores, y)

    def loss(value):
        return torch.nn.functional.cross_entropy(scores / value, y).item()

    grid = np.exp(np.linspace(math.log(found) - 1, math.log(found) + 1, 201))
    assert loss(found) <= min(loss(value) for value in grid) + 1e-12
    assert temperature(scores * 3, y) == pytest.approx(3 * found, rel=1e-6)


def test_fitting_gives_each_exit_its_temperature():
    rows, y = history()
    rule = Confidence(0.8).fitted(rows, y)
    assert rule.threshold == 0.8
    assert rule.temperatures == tuple(temperature(rows[:, k], y) for k in range(4))
    with pytest.raises(WeftError, match="fitted to 4 exits"):
        rule.leaves(torch.cat((rows, rows), dim=1))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 0.98))
def test_the_regression_ends_where_its_slope_is_zero(seed, share):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.rand(60, 5, generator=draw, dtype=torch.float64)
    targets = torch.rand(60, generator=draw) < share
    weights = torch.tensor(logistic(inputs, targets), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        inputs @ weights, targets.double(), reduction="sum"
    )
    (slope,) = torch.autograd.grad(loss + weights.square().sum() / 2, weights)
    assert slope.abs().max() < 1e-8


def test_evidence_is_what_it_says():
    rows, _ = history(rows=5)
    found = evidence(rows[:, :3]).numpy()
    for row in range(5):
        z = rows[row].numpy()
        chance = np.exp(z[2]) / np.exp(z[2]).sum()
        top = np.sort(chance)[::-1]
        entropy = -(chance * np.log(chance)).sum() / math.log(3)
        echo = np.mean([z[k].argmax() == z[2].argmax() for k in range(2)])
        np.testing.assert_allclose(found[row], [1, top[0], top[0] - top[1], entropy, echo])


def exchangeable(trials, rows, exits, seed=0):
    """Scores and agreement of `rows` + 1 exchangeable items: random, and random together."""
    draw = np.random.default_rng(seed)
    level = draw.random((trials, rows + 1, 1))
    scores = (level + draw.random((trials, rows + 1, exits))) / 2
    return scores, draw.random(scores.shape) < 0.7 * scores


def covered(threshold, variant, *, trials=2000, rows=20, exits=3, epsilon=0.05):
    """How often the first exit above its threshold agrees with the full model."""
    scores, agrees = exchangeable(trials, rows, exits)
    right = 0
    for score, agree in zip(scores, agrees, strict=True):
        known, same = torch.from_numpy(score[:-1]), torch.from_numpy(agree[:-1])
        limits = threshold(known, same, epsilon, variant)
        out = [k for k in range(exits) if score[-1, k] > limits[k]]
        right += not out or bool(agree[-1, out[0]])
    return right / trials


def without_the_finite_sample_term(scores, agrees, epsilon, variant):
    """A broken twin: the plain quantile, ⌈(1 − ε) m⌉."""
    worst = scores.masked_fill(agrees, 0.0).amax(1).sort().values
    return (float(worst[math.ceil(round((1 - epsilon) * len(worst), 9)) - 1]),) * scores.shape[1]


NOISE = 3 * math.sqrt(0.05 * 0.95 / 2000)  # three standard errors of a simulated share


@pytest.mark.parametrize("variant", ["shared", "independent"])
def test_coverage_is_at_least_what_was_promised(variant):
    assert covered(conformal_thresholds, variant) >= 0.95 - NOISE
    # Enough rows for the independent rule, which splits ε, to let anybody leave.
    assert covered(conformal_thresholds, variant, rows=150, trials=500) >= 0.95 - 2 * NOISE


def test_coverage_notices_a_quantile_without_its_finite_sample_term():
    assert covered(without_the_finite_sample_term, "shared") < 0.95 - NOISE


@pytest.mark.parametrize(
    ("rows", "epsilon", "rank"), [(19, 0.05, 19), (20, 0.05, 20), (99, 0.1, 90), (18, 0.05, None)]
)
def test_the_quantile_by_hand(rows, epsilon, rank):
    scores = torch.linspace(0.01, 0.9, rows, dtype=torch.float64).flip(0)
    expected = 1.0 if rank is None else float(scores.sort().values[rank - 1])
    assert quantile(scores, epsilon) == expected


@pytest.mark.parametrize("variant", ["shared", "independent"])
def test_a_fitted_conformal_rule_keeps_its_promise(variant):
    """The whole rule, regression included, on rows it has not seen."""
    agreement, sooner = [], []
    for seed in range(20):
        rows, y = history(rows=1000, seed=seed)
        rule = Conformal(0.1, variant=variant).fitted(rows[:500], y[:500])
        fresh = rows[500:]
        chosen = leaves_at(rule, fresh)
        given_ = fresh.argmax(-1).gather(1, chosen[:, None] - 1)[:, 0]
        agreement.append((given_ == fresh[:, -1].argmax(-1)).double().mean().item())
        sooner.append((chosen < 4).double().mean().item())
    assert np.mean(agreement) >= 0.9 - 0.01
    assert np.mean(sooner) > 0.2  # a rule that lets nobody leave would agree as well


def test_specs_round_trip_fitted_or_not():
    rows, y = history()
    for text in (
        "never",
        "confidence(0.8)",
        "patience(3)",
        "conformal(0.1, variant='independent')",
    ):
        policy = EXITS.parse(text)
        assert EXITS.parse(str(policy)) == policy
        fitted = policy.fitted(rows, y)
        assert EXITS.parse(str(fitted)) == fitted
    assert EXITS.parse("patience(6)") == Patience(6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Confidence(1.5), "probability"),
        (lambda: Confidence(0.5, temperatures=(0.0,)), "above 0"),
        (lambda: Patience(0), "at least 1"),
        (lambda: Patience(1, tolerance=-1.0), "above 0"),
        (lambda: Conformal(0.0), "epsilon is a share"),
        (lambda: Conformal(0.1, variant="both"), "shared"),
        (lambda: Conformal(0.1).leaves(answers([0, 1])), "call policy.fitted"),
        (lambda: Conformal(0.1).fitted(answers([0, 1]), torch.tensor([0])), "2 rows"),
        (lambda: evidence(torch.zeros(2, 1, 1)), "2 or more"),
    ],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises(WeftError, match=says):
        make()

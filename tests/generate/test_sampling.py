"""The filters against numpy and against the logits processors of the Transformers library."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_model import quick

from weft.errors import WeftError
from weft.generate import Sampling

SCORES = st.lists(
    st.floats(-4, 4, allow_subnormal=False).map(lambda value: round(value, 3)),
    min_size=2,
    max_size=9,
    unique=True,
)
SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([None, 1, 3, 20]),
        "top_p": st.sampled_from([None, 0.05, 0.513, 0.917, 1.0]),
        "min_p": st.sampled_from([None, 0.0, 0.117, 0.9, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.9]),
    }
)


def plain(scores, seen, temperature, top_k, top_p, min_p, repetition_penalty):
    """The definition, token by token, in numpy."""
    scores = np.array(scores, dtype=np.float64)
    for token in seen:
        scores[token] *= repetition_penalty ** (-1 if scores[token] > 0 else 1)
    weights = np.exp(scores / temperature - (scores / temperature).max())
    order = [int(token) for token in np.argsort(-weights, kind="stable")]
    if top_k is not None:
        order = order[:top_k]
    total = weights[order].sum()
    if top_p is not None:
        kept, mass = [], 0.0
        for token in order:
            if mass >= top_p:
                break
            kept.append(token)
            mass += weights[token] / total
        order = kept
    if min_p is not None:
        order = [token for token in order if weights[token] >= min_p * weights[order[0]]]
    found = np.zeros_like(weights)
    found[order] = weights[order] / weights[order].sum()
    return found


def distribution(sampling, scores, seen):
    """What `pick` draws from, read off its own steps."""
    marks = torch.zeros(1, len(scores), dtype=torch.bool)
    marks[0, list(seen)] = True
    scores = sampling.penalised(torch.tensor([scores], dtype=torch.float64), marks)
    ranked, tokens = scores.sort(dim=-1, descending=True, stable=True)
    weights = sampling.filtered((ranked / sampling.temperature).softmax(-1))
    return torch.zeros_like(weights).scatter(1, tokens, weights / weights.sum())[0]


@quick
@given(scores=SCORES, settings=SETTINGS, data=st.data())
def test_filters_equal_numpy(scores, settings, data):
    seen = data.draw(st.sets(st.integers(0, len(scores) - 1)))
    got = distribution(Sampling(**settings), scores, seen).numpy()
    np.testing.assert_allclose(got, plain(scores, seen, **settings), atol=1e-12)


@quick
@given(scores=SCORES, settings=SETTINGS, data=st.data())
def test_filters_equal_the_transformers_library(scores, settings, data):
    library = pytest.importorskip("transformers", reason="parity with its implementation")
    seen = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    steps = [
        library.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]),
        library.TemperatureLogitsWarper(settings["temperature"]),
    ]
    if settings["top_k"] is not None:
        steps.append(library.TopKLogitsWarper(settings["top_k"]))
    if settings["top_p"] is not None:
        steps.append(library.TopPLogitsWarper(settings["top_p"]))
    if settings["min_p"] is not None:
        steps.append(library.MinPLogitsWarper(settings["min_p"]))
    theirs = torch.tensor([scores], dtype=torch.float64)
    for step in steps:
        theirs = step(torch.tensor([sorted(seen)]), theirs)
    got = distribution(Sampling(**settings), scores, seen)
    torch.testing.assert_close(got, theirs.softmax(-1)[0], atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "wrong", [{"top_p": 0.6}, {"top_k": 2}, {"min_p": 0.5}, {"temperature": 2}]
)
def test_a_wrong_filter_would_be_noticed(wrong):
    scores, right = [0.5, 2.0, -1.0, 1.5], {"temperature": 1.0, "repetition_penalty": 1.0}
    others = {"top_k": None, "top_p": None, "min_p": None}
    truth = plain(scores, set(), **{**right, **others})
    got = distribution(Sampling(**{**right, **wrong}), scores, set()).numpy()
    assert not np.allclose(got, truth, atol=1e-3)


def test_draws_follow_the_distribution():
    settings = {"temperature": 1.2, "min_p": 0.1, "repetition_penalty": 1.5}
    scores, draws = [0.5, 2.0, -1.0, 1.5, -1.5], 20_000
    sampling = Sampling(**settings)
    seen = torch.zeros(draws, 5, dtype=torch.bool)
    seen[:, [1, 2]] = True
    generators = [torch.Generator().manual_seed(s) for s in range(draws)]
    picked = sampling.pick(torch.tensor([scores]).expand(draws, -1), generators, seen)
    got = np.bincount(picked.numpy(), minlength=5) / draws
    expected = plain(scores, {1, 2}, top_k=None, top_p=None, **settings)
    assert set(np.flatnonzero(got)) == set(np.flatnonzero(expected))
    assert (np.abs(got - expected) <= 4 * np.sqrt(expected * (1 - expected) / draws)).all()


def test_the_penalty_turns_the_best_token():
    scores, seen = torch.tensor([[2.0, 1.5, -1.0]]), torch.tensor([[True, False, False]])
    assert Sampling(repetition_penalty=1.5).pick(scores, [], seen).tolist() == [1]
    assert Sampling().pick(scores, [], seen).tolist() == [0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_p": 0.1}, "no effect; give a temperature"),
        ({"temperature": 1.0, "min_p": 1.5}, "got min_p=1.5"),
        ({"repetition_penalty": 0.0}, "above 0"),
        ({"repetition_penalty": float("nan")}, "above 0"),
    ],
)
def test_refuses_settings(settings, message):
    with pytest.raises(WeftError, match=message):
        Sampling(**settings)

"""Classification and matching against the equation, row by row in float64."""

import numpy as np
import pytest
import torch
from objective_parts import built, pairs, rows

from weft.errors import WeftError
from weft.models import Classifier, Matcher
from weft.objectives import OBJECTIVES, Batch, Classify, Head, Match, higher_is_better


def log_softmax(scores):
    scores = scores.detach().double().numpy()
    top = scores.max(-1, keepdims=True)
    return scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True))


def test_classify_is_the_sum_over_documents():
    model, batch = built(Classify()), rows()
    loss = Classify().loss(model, batch, torch.Generator())
    log = log_softmax(model(batch.x, valid=batch.valid))
    truth = -sum(log[row, label] for row, label in enumerate(batch.y.tolist()))
    assert loss.total.item() == pytest.approx(truth, rel=1e-12)
    assert int(loss.count) == len(batch)
    right = log.argmax(-1) == batch.y.numpy()
    assert loss.hits.tolist() == right.tolist()
    assert int(loss.right) == right.sum()


def test_match_is_the_sum_over_pairs():
    model, batch = built(Match()), pairs()
    loss = Match().loss(model, batch, torch.Generator())
    scores = model(batch.x, batch.second, first_valid=batch.valid, second_valid=batch.second_valid)
    log = log_softmax(scores)
    truth = -sum(log[row, label] for row, label in enumerate(batch.y.tolist()))
    assert loss.total.item() == pytest.approx(truth, rel=1e-12)
    assert int(loss.count) == len(batch)


@pytest.mark.parametrize(
    ("objective", "made"), [(Classify(), rows), (Match(), pairs)], ids=["classify", "match"]
)
def test_padding_changes_no_loss(objective, made):
    model, batch = built(objective), made()
    loss = objective.loss(model, batch, torch.Generator())
    spoiled = batch.x.masked_fill(~batch.valid, 3)
    other = objective.loss(model, Batch(**{**vars(batch), "x": spoiled}), torch.Generator())
    torch.testing.assert_close(loss.total, other.total, rtol=1e-12, atol=0)


def test_losses_are_float32_in_half_precision():
    model, batch = built(Classify()).float(), rows()
    with torch.autocast("cpu", torch.bfloat16):
        assert Classify().loss(model, batch, torch.Generator()).total.dtype == torch.float32


def test_models_come_from_a_trunk_and_a_head():
    head = Head(classes=5, pool="max", hidden=7)
    from objective_parts import trunk

    made = Classify().build(trunk(), head)
    assert isinstance(made, Classifier)
    assert (made.classes, made.pool, made.hidden) == (5, "max", 7)
    made = Match().build(trunk(), head)
    assert isinstance(made, Matcher)
    assert (made.classes, made.pool, made.hidden) == (5, "max", 7)


def test_what_is_missing_is_said():
    batch = rows()
    with pytest.raises(WeftError, match="no classes; to learn from inputs alone"):
        Classify().loss(built(Classify()), Batch(x=batch.x, valid=batch.valid), torch.Generator())
    with pytest.raises(WeftError, match="two documents"):
        Match().loss(built(Match()), batch, torch.Generator())


def test_the_registry_has_them():
    assert {"causal_lm", "classify", "masked_lm", "match"} <= set(OBJECTIVES)
    assert OBJECTIVES.parse("masked_lm(rate=0.3)").rate == 0.3


def test_directions():
    assert higher_is_better("accuracy")
    assert not higher_is_better("bits per byte")

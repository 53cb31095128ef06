"""Scores: exact counts on ragged batches, groups, bits per byte, and no trace left behind."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tiny_runs import CLASSES, VOCAB, examples, trunk

from weft.errors import WeftError
from weft.objectives import CausalLM, Classify, Head, MaskedLM
from weft.training import Ordered, score


def built(objective, **shape):
    torch.manual_seed(0)
    return objective.build(trunk(**shape), Head(classes=CLASSES)).build().double().eval()


@pytest.mark.parametrize("batch", [1, 3, 4, 13, 50])
def test_counts_are_exact_on_a_ragged_last_batch(batch):
    data, model = examples(rows=13), built(Classify())
    found = score(model, Ordered(data, batch), Classify())
    right = total = 0
    for row in range(13):
        one = data.batch(np.array([row]))
        scores = model(one.x, valid=one.valid)[0]
        right += int(scores.argmax() == one.y[0])
        total -= torch.log_softmax(scores, -1)[one.y[0]].item()
    assert found.count == 13
    assert found.accuracy == found.score == right / 13
    assert found.loss == pytest.approx(total / 13, rel=1e-12)


def test_mean_of_batch_means_would_be_wrong():
    data, model = examples(rows=13), built(Classify())
    found = score(model, Ordered(data, 4), Classify())
    means = [score(model, [batch], Classify()).loss for batch in Ordered(data, 4)]
    assert not math.isclose(found.loss, sum(means) / 4, rel_tol=1e-6)


@pytest.mark.parametrize("batch", [1, 5, 13])
def test_bits_per_byte_are_bits_of_every_predicted_token(batch):
    data, model = examples(rows=13), built(CausalLM())
    found = score(model, Ordered(data, batch), CausalLM())
    nats, count = 0.0, 0
    for row in range(13):
        ids = torch.tensor(np.array(data.rows[row], dtype=np.int64))[None]
        log = torch.log_softmax(model(ids), -1)[0]
        nats -= sum(log[t, ids[0, t + 1]].item() for t in range(ids.shape[1] - 1))
        count += ids.shape[1] - 1
    assert found.count == count
    assert found.score == pytest.approx(nats / count / math.log(2), rel=1e-9)
    assert found.metric == "bits per byte"


def test_a_model_that_knows_nothing_needs_log2_of_the_vocabulary():
    model = built(CausalLM(tied=False))
    torch.nn.init.zeros_(model.head)
    found = score(model, Ordered(examples(), 4), CausalLM())
    assert found.score == pytest.approx(math.log2(VOCAB))


def test_groups_add_up():
    data = examples(rows=13)
    groups = np.arange(13) % 3
    data = dataclasses.replace(data, groups=groups, group_names=("first", "middle"))
    model = built(Classify())
    found = score(model, Ordered(data, 4), Classify())
    assert [group.name for group in found.groups] == ["first", "middle", "2"]
    assert [group.count for group in found.groups] == [5, 4, 4]
    for number, group in enumerate(found.groups):
        one = data.batch(np.flatnonzero(groups == number))
        right = (model(one.x, valid=one.valid).argmax(-1) == one.y).sum().item()
        assert group.right == right
        assert found.row()[f"group {group.name}"] == right / group.count
    assert sum(group.right for group in found.groups) / 13 == found.accuracy


def test_random_masks_are_the_same_each_time_and_differ_by_seed():
    model, source = built(MaskedLM(rate=0.5)), Ordered(examples(), 4)
    one, two = (score(model, source, MaskedLM(rate=0.5)) for _ in range(2))
    assert one == two
    assert score(model, source, MaskedLM(rate=0.5), seed=1).loss != one.loss


def test_nothing_is_left_behind():
    model = built(Classify(), dropout=0.5).train()
    before = torch.get_rng_state()
    source = Ordered(examples(), 4)
    one, two = score(model, source, Classify()), score(model, source, Classify())
    assert one == two  # no dropout
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_it_can_be_stopped():
    asked = []
    found = score(
        built(Classify()),
        Ordered(examples(), 4),
        Classify(),
        stop=lambda: asked.append(1) or len(asked) > 2,
    )
    assert found is None
    assert len(asked) == 3


def test_nothing_to_score_is_refused():
    with pytest.raises(WeftError, match="nothing to score"):
        score(built(Classify()), [], Classify())

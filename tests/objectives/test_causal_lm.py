"""Next tokens against the equation, token by token in float64."""

import pytest
import torch
from objective_parts import built, pairs, rows, trunk

from weft.models import Decoder
from weft.objectives import Batch, CausalLM


def by_hand(model, batch):
    """Sum of −log p(next | before), each row alone and without padding."""
    total, count, right = 0.0, 0, 0
    for ids, valid in zip(batch.x, batch.valid, strict=True):
        real = ids[valid]
        for t in range(1, len(real)):
            log = torch.log_softmax(model(real[None, :t])[0, -1], -1)
            total -= log[real[t]].item()
            count += 1
            right += int(log.argmax() == real[t])
    return total, count, right


def check(loss, truth):
    assert loss.total.item() == pytest.approx(truth[0], rel=1e-10)
    assert int(loss.count) == truth[1]
    assert int(loss.right) == truth[2]


def test_every_next_token_of_every_row():
    model, batch = built(CausalLM()), rows()
    check(CausalLM().loss(model, batch, torch.Generator()), by_hand(model, batch))


def test_left_padding_counts_alike():
    model, batch = built(CausalLM()), rows()
    flipped = Batch(x=torch.zeros_like(batch.x), valid=batch.valid.flip(1))
    flipped.x[flipped.valid] = batch.x[batch.valid]
    check(CausalLM().loss(model, flipped, torch.Generator()), by_hand(model, batch))


def test_without_padding():
    model, batch = built(CausalLM()), rows()
    full = Batch(x=batch.x)
    truth = by_hand(model, Batch(x=batch.x, valid=torch.ones_like(batch.valid)))
    check(CausalLM().loss(model, full, torch.Generator()), truth)


def test_both_documents_of_a_pair():
    model, batch = built(CausalLM()), pairs()
    one = by_hand(model, batch)
    two = by_hand(model, Batch(x=batch.second, valid=batch.second_valid))
    loss = CausalLM().loss(model, batch, torch.Generator())
    check(loss, tuple(a + b for a, b in zip(one, two, strict=True)))


def test_predicting_the_token_itself_would_be_found():
    model, batch = built(CausalLM()), rows()
    truth = by_hand(model, batch)
    shifted = Batch(x=batch.x.roll(1, 1), valid=batch.valid)
    with pytest.raises(AssertionError):
        check(CausalLM().loss(model, shifted, torch.Generator()), truth)


def test_rows_of_one_token_have_nothing_to_predict():
    batch = Batch(x=torch.tensor([[3]]), valid=torch.tensor([[True]]))
    loss = CausalLM().loss(built(CausalLM()), batch, torch.Generator())
    assert (loss.total.item(), int(loss.count)) == (0.0, 0)


def test_the_model_is_a_decoder_whatever_the_trunk():
    made = CausalLM(tied=False).build(trunk())
    assert isinstance(made.trunk, Decoder)
    assert not made.tied
    assert made.trunk.stack == trunk().stack

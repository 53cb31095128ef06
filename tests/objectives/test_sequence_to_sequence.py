"""Targets against the equation, token by token; label smoothing; exact match against decoding."""

import math

import pytest
import torch
from objective_parts import VOCAB, pairs, rows, trunk

from weft.errors import WeftError
from weft.objectives import Batch, SequenceToSequence
from weft.training import score

END, START = VOCAB, VOCAB + 1


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(objective=SequenceToSequence(), **embedding):  # noqa: B008  # an immutable value
    torch.manual_seed(0)
    model = objective.build(trunk(**embedding)).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def by_hand(model, batch, smoothing):
    total = count = right = 0
    whole = []
    for row in range(len(batch)):
        source = batch.x[row][batch.valid[row]][None]
        said = [*batch.second[row][batch.second_valid[row]].tolist(), END]
        hits = 0
        for t, token in enumerate(said):
            shown = torch.tensor([[START, *said[:t]]])
            log = model(shown, source=source)[0, -1].log_softmax(-1)
            total -= (1 - smoothing) * log[token].item() + smoothing * log.mean().item()
            hits += int(log.argmax() == token)
        count, right = count + len(said), right + hits
        whole.append(hits == len(said))
    return total, count, right, whole


def check(loss, truth):
    assert loss.total.item() == pytest.approx(truth[0], rel=1e-10)
    assert (int(loss.count), int(loss.right), loss.hits.tolist()) == truth[1:]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_every_token_of_the_target_and_its_end(smoothing):
    objective = SequenceToSequence(smoothing=smoothing)
    model, batch = built(), pairs()
    truth = by_hand(model, batch, smoothing)
    check(objective.loss(model, batch, generator()), truth)
    other = Batch(
        x=batch.x,
        valid=batch.valid,
        second=batch.second.roll(1, 1),
        second_valid=batch.second_valid,
    )
    with pytest.raises(AssertionError):
        check(objective.loss(model, other, generator()), truth)


def test_padding_may_stand_anywhere():
    model, batch = built(), pairs()
    flipped = batch.second_valid.flip(1)
    second = torch.zeros_like(batch.second).masked_scatter_(
        flipped, batch.second[batch.second_valid]
    )
    moved = Batch(x=batch.x, valid=batch.valid, second=second, second_valid=flipped)
    check(SequenceToSequence().loss(model, moved, generator()), by_hand(model, batch, 0.1))


def test_without_padding():
    model, batch = built(), pairs()
    full = Batch(x=batch.x, second=batch.second)
    same = torch.ones_like(batch.valid)
    truth = by_hand(
        model, Batch(x=batch.x, valid=same, second=batch.second, second_valid=same), 0.1
    )
    check(SequenceToSequence().loss(model, full, generator()), truth)


def test_a_fused_output_gives_the_same():
    plain, batch = SequenceToSequence(smoothing=0.0), pairs()
    model = built(plain)
    truth = plain.loss(model, batch, generator())
    calls = []
    original = type(model).fused
    type(model).fused = property(lambda self: calls.append(1) or True)
    try:
        found = plain.loss(model, batch, generator())
    finally:
        type(model).fused = original
    assert calls
    torch.testing.assert_close(found, truth)


def test_exact_match_is_what_greedy_decoding_writes():
    objective = SequenceToSequence(metric="exact match", decoder_layers=1)
    model, batch = learned(objective)
    found = score(model, [batch], objective)
    starts = torch.full((len(batch), 1), START)
    written = model.generate(starts, 6, stop=END, source=batch.x)
    wanted = torch.cat((batch.second, torch.full((len(batch), 1), END)), 1)
    right = [row[1:6].tolist() == want.tolist() for row, want in zip(written, wanted, strict=True)]
    assert 0.2 < found.score < 1.0  # else it would tell nothing
    assert found.score == sum(right) / len(right)
    assert found.metric == "exact match"
    tokens = score(model, [batch], SequenceToSequence())
    assert tokens.metric == "token accuracy"
    assert found.score < tokens.score == found.accuracy


def learned(objective):
    """A model that has half learned to copy four tokens."""
    torch.manual_seed(0)
    model = objective.build(trunk()).build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(260):
        ids = torch.randint(VOCAB, (16, 4))
        loss = objective.loss(model, Batch(x=ids, second=ids), generator())
        optimiser.zero_grad()
        (loss.total / loss.count).backward()
        optimiser.step()
    ids = torch.randint(VOCAB, (60, 4), generator=generator(5))
    return model, Batch(x=ids, second=ids)


def test_a_shallow_decoder_and_a_mixer_of_its_own():
    deep = SequenceToSequence(decoder_layers=1, decoder_mixer="linear_transformer").build(trunk())
    assert deep.trunk.decoder.stack.order == "scf"
    assert deep.trunk.decoder.stack.mixer.name == "linear_transformer"
    assert deep.trunk.encoder.stack.mixer.name == "full"
    loss = SequenceToSequence().loss(deep.build(), pairs(), generator())
    assert math.isfinite(loss.total.item())


def test_a_full_length_target_has_a_place_for_its_start():
    model = built(positions="learned")
    ids = torch.zeros(1, 20, dtype=torch.long)
    assert int(SequenceToSequence().loss(model, Batch(x=ids, second=ids), generator()).count) == 21


def test_what_is_missing_is_said():
    with pytest.raises(WeftError, match="writes a second sequence"):
        SequenceToSequence().loss(built(), rows(), generator())
    with pytest.raises(WeftError, match="smoothing is a share"):
        SequenceToSequence(smoothing=1.0)
    with pytest.raises(WeftError, match="metric is one of"):
        SequenceToSequence(metric="bleu")
    with pytest.raises(WeftError, match="decoder_layers is at least 1"):
        SequenceToSequence(decoder_layers=0).build(trunk())
    with pytest.raises(WeftError, match="has a vocab"):
        SequenceToSequence().build(trunk(vocab=None, channels=3))

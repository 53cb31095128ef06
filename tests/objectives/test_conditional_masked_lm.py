"""Masked targets: how many are masked, the loss over them and the length, and mask-predict."""

import pytest
import torch
from objective_parts import VOCAB, pairs, rows, trunk

from weft.errors import WeftError
from weft.models import load, save
from weft.models.heads.mask_predict import mask_predict
from weft.objectives import Batch, ConditionalMaskedLM, SpanCorruption
from weft.objectives.conditional_masked_lm import masked_part
from weft.training.checkpoints.transfer import transfer

MASK = VOCAB


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(objective=ConditionalMaskedLM()):  # noqa: B008  # an immutable value
    torch.manual_seed(0)
    model = objective.build(trunk()).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def test_the_number_of_masks_is_uniform():
    real = torch.arange(6) < torch.tensor([4] * 8000 + [0] * 8)[:, None]
    hidden = masked_part(real, generator())
    assert not (hidden & ~real).any()
    numbers = hidden[:8000].sum(1)
    shares = torch.bincount(numbers, minlength=5) / 8000
    assert shares[0] == 0
    assert (shares[1:] - 0.25).abs().max() < 0.02
    assert (hidden[:8000, :4].float().mean(0) - 0.625).abs().max() < 0.02
    assert not hidden[8000:].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_masks_and_lengths(smoothing):
    objective, batch = ConditionalMaskedLM(smoothing=smoothing, weight=0.3), pairs()
    model = built()
    loss = objective.loss(model, batch, generator(3))
    hidden = masked_part(batch.second_valid, generator(3))
    total = count = right = 0
    for row in range(len(batch)):
        source = batch.x[row][batch.valid[row]][None]
        target, masks = (t[row][batch.second_valid[row]] for t in (batch.second, hidden))
        log = model(target.masked_fill(masks, MASK)[None], source=source)[0].log_softmax(-1)
        for place in masks.nonzero().flatten().tolist():
            one = log[place]
            total -= (1 - smoothing) * one[target[place]].item() + smoothing * one.mean().item()
            count, right = count + 1, right + int(one.argmax() == target[place])
        total -= 0.3 * model.encode(source).lengths[0].log_softmax(-1)[len(target)].item()
    assert (int(loss.count), int(loss.right)) == (count, right)
    assert loss.total.item() == pytest.approx(total, rel=1e-9)
    other = ConditionalMaskedLM(smoothing=smoothing, weight=0.2).loss(model, batch, generator(3))
    assert other.total.item() != pytest.approx(total, rel=1e-3)


def plainly(model, source, iterations, candidates):
    """Mask-predict for one source, every candidate by itself."""
    lengths = model.encode(source[None]).lengths[0]
    best, found = None, None
    for n in sorted(range(1, len(lengths)), key=lambda n: -lengths[n].item())[:candidates]:
        target, sure = [MASK] * n, [0.0] * n
        for step in range(iterations):
            again = sorted(range(n), key=lambda i: sure[i])[: n * (iterations - step) // iterations]
            for i in again:
                target[i] = MASK
            scores = model(torch.tensor([target]), source=source[None])[0]
            scores[:, MASK] = float("-inf")
            log = scores.log_softmax(-1)
            for i in again:
                sure[i], token = (part.item() for part in log[i].max(0))
                target[i] = int(token)
        if best is None or sum(sure) / n > best:
            best, found = sum(sure) / n, target
    return found


@pytest.mark.parametrize(("iterations", "candidates"), [(1, 1), (3, 2), (4, 5)])
@torch.no_grad()
def test_mask_predict_is_the_papers(iterations, candidates):
    model, batch = built(), rows()
    found = mask_predict(
        model, batch.x, iterations, candidates=candidates, source_valid=batch.valid
    )
    for row, own in enumerate(found):
        source = batch.x[row][batch.valid[row]]
        assert own.tolist() == plainly(model, source, iterations, candidates)


@torch.no_grad()
def test_more_iterations_and_candidates_matter():
    """The comparison above is between different answers."""
    model, batch = built(), rows()
    answers = {
        str([row.tolist() for row in mask_predict(model, batch.x, t, candidates=c)])
        for t, c in ((1, 1), (4, 1), (4, 5))
    }
    assert len(answers) == 3


def test_targets_are_read_both_ways():
    model, batch = built(), pairs()
    shown = torch.tensor([[1, MASK, 2, 3]])
    before = model(shown, source=batch.x[:1])[0, 1]
    for place in (0, 2, 3):
        changed = shown.clone()
        changed[0, place] += 1
        assert not torch.equal(model(changed, source=batch.x[:1])[0, 1], before)


def test_saved_and_loaded(tmp_path):
    model, batch = built(), pairs()
    again = load(save(model, tmp_path / "model"))
    assert torch.equal(again(batch.second, source=batch.x), model(batch.second, source=batch.x))


def test_deep_encoder_shallow_decoder():
    made = ConditionalMaskedLM(decoder_layers=1, decoder_mixer="fnet").build(trunk())
    assert made.trunk.decoder.stack.order == "scf"
    assert made.trunk.encoder.embedding.registers == 1
    loss = ConditionalMaskedLM().loss(made.build(), pairs(), generator())
    assert torch.isfinite(loss.total)


def test_mask_predict_writes_what_was_learned():
    """Reversal without any order of writing: far more tokens right than one in seven."""
    objective = ConditionalMaskedLM(smoothing=0.0)
    torch.manual_seed(0)
    model = objective.build(trunk()).build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
    for step in range(120):
        ids = torch.randint(VOCAB, (32, 3))
        loss = objective.loss(model, Batch(x=ids, second=ids.flip(1)), generator(step))
        optimiser.zero_grad()
        (loss.total / loss.count).backward()
        optimiser.step()
    ids = torch.randint(VOCAB, (50, 3), generator=generator(1))
    written = mask_predict(model, ids, 3, candidates=1)
    assert all(len(row) == 3 for row in written)
    right = (torch.stack(written) == ids.flip(1)).float().mean()
    assert right > 0.6


def test_weights_go_on_from_span_corruption():
    shape = trunk(positions="learned")
    old = SpanCorruption(sentinels=3).build(shape).build()
    new = ConditionalMaskedLM().build(shape).build()
    done = transfer(old, new, head=False)
    assert "trunk.decoder.stack.sublayers.0.body.project.to_q.weight" in done.whole
    assert "trunk.encoder.embedding.positions" in done.whole
    assert "lengths.weight" in done.fresh
    table = new.trunk.decoder.embedding.table
    assert torch.equal(table[:VOCAB], old.trunk.decoder.embedding.table[:VOCAB])


def test_what_is_missing_is_said():
    with pytest.raises(WeftError, match="writes a second sequence"):
        ConditionalMaskedLM().loss(built(), rows(), generator())
    with pytest.raises(WeftError, match="weight is 0 or more"):
        ConditionalMaskedLM(weight=-1.0)
    with pytest.raises(WeftError, match="an iteration and a candidate"):
        mask_predict(built(), rows().x, 0)
    empty = Batch(
        x=torch.zeros(1, 2, dtype=torch.long),
        second=torch.zeros(1, 2, dtype=torch.long),
        second_valid=torch.zeros(1, 2, dtype=torch.bool),
    )
    assert int(ConditionalMaskedLM().loss(built(), empty, generator()).count) == 0

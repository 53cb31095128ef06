"""Masked tokens: which are chosen, what is shown instead, and the loss over them."""

import pytest
import torch
from objective_parts import VOCAB, built, pairs, rows, trunk

from weft.errors import WeftError
from weft.objectives import MaskedLM
from weft.objectives.masked_lm import Hidden

HIDDEN = Hidden(VOCAB, VOCAB + 1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_shares_are_those_of_the_settings():
    ids = torch.randint(VOCAB, (400, 250), generator=generator(3))
    shown, chosen = MaskedLM().corrupt(ids, None, HIDDEN, generator())
    picked = chosen.float().mean().item()
    assert picked == pytest.approx(0.15, abs=0.005)
    masked = (shown[chosen] == VOCAB).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.01)
    kept = (shown[chosen] == ids[chosen]).float().mean().item()
    # A random token is the old one once in VOCAB times.
    assert kept == pytest.approx(0.1 + 0.1 / VOCAB, abs=0.01)
    assert torch.equal(shown[~chosen], ids[~chosen])
    assert shown.max() == VOCAB
    others = shown[chosen & (shown != VOCAB) & (shown != ids)]
    assert sorted(set(others.tolist())) == list(range(VOCAB))


def test_a_mask_token_in_the_middle_is_shown_and_never_drawn():
    """As imported models have it: [MASK] of BERT is id 103 of 30,522."""
    ids = torch.randint(VOCAB, (400, 250), generator=generator(3))
    ids[ids == 2] = 3
    shown, chosen = MaskedLM(masked=0.5, random=0.5).corrupt(
        ids, None, Hidden(2, VOCAB), generator()
    )
    assert (shown[chosen] == 2).float().mean().item() == pytest.approx(0.5, abs=0.01)
    drawn = shown[chosen & (shown != 2)]
    counts = drawn.bincount(minlength=VOCAB).double() / len(drawn)
    assert counts[2] == 0
    others = counts[torch.arange(VOCAB) != 2]
    assert others.sub(1 / (VOCAB - 1)).abs().max() < 0.02


def test_padding_is_never_chosen():
    batch = rows()
    _, chosen = MaskedLM(rate=1.0).corrupt(batch.x, batch.valid, HIDDEN, generator())
    assert torch.equal(chosen, batch.valid)


@pytest.mark.parametrize("made", [rows, pairs], ids=["rows", "pairs"])
def test_the_loss_is_the_sum_over_the_chosen(made):
    objective, batch = MaskedLM(rate=0.5), made()
    model = built(objective)
    loss = objective.loss(model, batch, generator(5))
    draw, total, count = generator(5), 0.0, 0
    documents = [(batch.x, batch.valid)]
    if batch.second is not None:
        documents.append((batch.second, batch.second_valid))
    for ids, valid in documents:
        shown, chosen = objective.corrupt(ids, valid, HIDDEN, draw)
        log = torch.log_softmax(model(shown, valid=valid), -1)
        for row, place in chosen.nonzero().tolist():
            total -= log[row, place, ids[row, place]].item()
            count += 1
    assert count > 5
    assert int(loss.count) == count
    assert loss.total.item() == pytest.approx(total, rel=1e-12)


def test_the_generator_alone_decides():
    objective, model, batch = MaskedLM(rate=0.5), built(MaskedLM()), rows()
    one = objective.loss(model, batch, generator(1)).total
    torch.rand(3)  # torch's own state is no part of it
    assert objective.loss(model, batch, generator(1)).total == one
    assert objective.loss(model, batch, generator(2)).total != one


def test_the_table_has_a_row_for_the_mask():
    made = MaskedLM().build(trunk())
    assert made.trunk.embedding.vocab == VOCAB + 1


def test_nothing_chosen_is_no_loss():
    objective = MaskedLM(rate=1e-9)
    loss = objective.loss(built(objective), rows(), generator())
    assert (loss.total.item(), int(loss.count)) == (0.0, 0)


def test_bad_settings_are_refused():
    with pytest.raises(WeftError, match="rate is a share"):
        MaskedLM(rate=0.0)
    with pytest.raises(WeftError, match="at most 1 in sum"):
        MaskedLM(masked=0.8, random=0.3)
    with pytest.raises(WeftError, match="has a vocab"):
        MaskedLM().build(trunk(vocab=None, channels=3))

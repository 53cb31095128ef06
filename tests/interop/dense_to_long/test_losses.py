"""Losses by position, against the model's own scores, row by row and piece by piece."""

import pytest
import torch
import torch.nn.functional as F
from long_models import bert, llama

from weft.interop.hf.dense_to_long.losses import (
    CausalLosses,
    MaskedLosses,
    bins_of,
    in_bins,
    loss_by_position,
    losses_for,
)
from weft.interop.hf.dense_to_long.text import Ends

SPECIAL = (0, 1, 2, 3, 4)


def rows(count, n):
    body = torch.randint(5, 33, (count, n), generator=torch.Generator().manual_seed(1))
    body[:, 0], body[:, -1] = 2, 3
    return body


@pytest.fixture
def reads():
    torch.manual_seed(0)
    return bert().eval()


@torch.no_grad()
def test_a_decoder_in_pieces_with_its_first_token():
    torch.manual_seed(0)
    model = llama().eval()
    ids = rows(2, 21)[:, :-1]  # begins with a token of its own, does not end with one
    found = loss_by_position(model, ids, CausalLosses(), 8, Ends(2, None))
    expected = torch.full((2, 20), float("nan"))
    for row, out in zip(ids, expected, strict=True):
        for start in range(1, 20, 7):
            piece = torch.cat((torch.tensor([2]), row[start : start + 7]))
            scores = model(piece[None]).logits[0].log_softmax(-1)
            for at in range(1, len(piece)):
                out[start + at - 1] = -scores[at - 1, piece[at]]
    assert found[0].isnan()
    assert torch.allclose(found[1:], expected.mean(0)[1:], atol=1e-5)


@torch.no_grad()
def test_an_encoder_predicts_the_same_places_in_pieces(reads):
    losses = losses_for(reads, 4, SPECIAL)
    ids = rows(1, 30)
    given, chosen = losses.drawn(ids, 0, 33)
    assert chosen.any()
    assert not chosen[0, [0, -1]].any()
    whole = loss_by_position(reads, ids, losses)
    scores = reads(given).logits[0]
    own = F.cross_entropy(scores, ids[0], reduction="none")
    assert torch.equal(whole.isfinite(), chosen[0])
    assert torch.allclose(whole[chosen[0]], own[chosen[0]], atol=1e-5)
    found = loss_by_position(reads, ids, losses, 12, Ends(2, 3))
    assert torch.equal(found.isfinite(), chosen[0])
    for start in range(1, 29, 10):
        stop = min(start + 10, 29)
        piece = torch.cat((torch.tensor([2]), given[0, start:stop], torch.tensor([3])))
        scores = reads(piece[None]).logits[0, 1:-1]
        own = F.cross_entropy(scores, ids[0, start:stop], reduction="none")
        here = chosen[0, start:stop]
        assert torch.allclose(found[start:stop][here], own[here], atol=1e-5)


def test_what_is_masked_is_as_bert_masks():
    ids = torch.randint(5, 33, (50, 400), generator=torch.Generator().manual_seed(1))
    given, chosen = MaskedLosses(4, SPECIAL).drawn(ids, 3, 33)
    share = lambda x: float(x.float().mean())  # noqa: E731
    assert share(chosen) == pytest.approx(0.15, abs=0.01)
    assert share(given[chosen] == 4) == pytest.approx(0.8 + 0.1 / 33, abs=0.02)
    assert share(given[chosen] == ids[chosen]) == pytest.approx(0.1 + 0.1 / 33, abs=0.02)
    assert torch.equal(given[~chosen], ids[~chosen])


def test_spans_of_positions():
    assert bins_of(2048, 512) == [(0, 128), (128, 512), (512, 1024), (1024, 2048)]
    assert bins_of(600, 512) == [(0, 128), (128, 512), (512, 600)]
    curve = torch.tensor([1.0, float("nan"), 3.0, 5.0])
    assert in_bins(curve, [(0, 2), (2, 4)]) == {"0-2": 1.0, "2-4": 4.0}

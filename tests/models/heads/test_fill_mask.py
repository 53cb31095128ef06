"""Gaps are filled with the most probable tokens, each from its own text."""

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Decoder, Encoder, LanguageModel, Stack
from weft.models.heads.fill_mask import fill_mask

MASK = 7


def model_of(kind=Encoder):
    torch.manual_seed(0)
    trunk = kind(
        embedding=Embedding(vocab=MASK + 1, positions="sinusoidal"),
        stack=Stack(frame=Frame(dim=8, heads=2), order="sf", dropout=0.5),
    )
    return LanguageModel(trunk=trunk).build().double()


def test_each_gap_alone():
    model = model_of()
    ids = torch.tensor([[1, MASK, 2, MASK], [MASK, 3, MASK, 0]])
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    found = fill_mask(model, ids, valid=valid, top=3)
    assert found.places.tolist() == [[0, 1], [0, 3], [1, 0]]
    assert model.training  # as it was
    model.eval()
    for (row, place), tokens, chances in zip(
        found.places.tolist(), found.tokens, found.probabilities, strict=True
    ):
        scores = model(ids[row][valid[row]][None])[0, place, :MASK].softmax(-1)
        best = scores.sort(descending=True)
        assert tokens.tolist() == best.indices[:3].tolist()
        torch.testing.assert_close(chances, best.values[:3])
        assert found.ids[row, place] == best.indices[0]
    kept = torch.ones_like(ids, dtype=torch.bool)
    kept[found.places[:, 0], found.places[:, 1]] = False
    assert torch.equal(found.ids[kept], ids[kept])


def test_a_mask_token_of_the_checkpoints_own():
    model = model_of()
    own = LanguageModel(trunk=model.config.trunk, mask_id=2).build().double()
    own.load_state_dict(model.state_dict())
    ids = torch.tensor([[1, 2, MASK, 3]])
    found = fill_mask(own, ids, top=7)
    assert found.places.tolist() == [[0, 1]]
    assert sorted(found.tokens[0].tolist()) == [0, 1, 3, 4, 5, 6, 7]
    scores = own.eval()(ids)[0, 1]
    scores[2] = -torch.inf
    torch.testing.assert_close(found.probabilities[0], scores.softmax(-1).sort().values.flip(0)[:7])


def test_a_mask_id_that_cannot_be():
    trunk = model_of().config.trunk
    with pytest.raises(WeftError, match="mask_id is one of the vocab=8 ids"):
        LanguageModel(trunk=trunk, mask_id=8)
    with pytest.raises(WeftError, match="came without a mask token"):
        fill_mask(LanguageModel(trunk=trunk, mask_id=None).build(), torch.tensor([[1, 2]]))


def test_what_cannot_be_filled_says_so():
    ids = torch.tensor([[1, MASK]])
    with pytest.raises(WeftError, match="on an Encoder"):
        fill_mask(model_of(Decoder), ids)
    with pytest.raises(WeftError, match="top is 1 to 7"):
        fill_mask(model_of(), ids, top=8)
    assert fill_mask(model_of(), ids[:, :1]).tokens.shape == (0, 5)

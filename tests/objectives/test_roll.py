"""Documents that are moved cyclically while a model learns."""

import pytest
import torch

from weft.errors import WeftError
from weft.objectives import Batch, Classify
from weft.objectives.classify import rolled

VALID = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] * 6])


def batch(**more):
    return Batch(x=torch.arange(18).view(3, 6), valid=VALID, y=torch.zeros(3).long(), **more)


def generator():
    return torch.Generator().manual_seed(0)


def is_rotation(found, own):
    return any(found == own[k:] + own[:k] for k in range(len(own)))


def test_real_tokens_turn_and_padding_stays():
    moved = set()
    for seed in range(20):
        found = rolled(batch(), 1.0, torch.Generator().manual_seed(seed))
        assert is_rotation(found.x[0].tolist(), [0, 1, 2, 3, 4, 5])
        assert is_rotation(found.x[1, :4].tolist(), [6, 7, 8, 9])
        assert found.x[1, 4:].tolist() == [10, 11]
        assert found.x[2].tolist() == batch().x[2].tolist()
        moved.add(int(found.x[0, 0]))
    assert len(moved) > 3, "every place comes up"


def test_marks_and_channels_move_with_their_tokens():
    values = torch.stack((batch().x, batch().x), dim=-1).float()
    mark = batch().x % 2 == 0
    given = Batch(x=values, valid=VALID, marks={"is_global": mark}, y=torch.zeros(3).long())
    found = rolled(given, 1.0, generator())
    assert torch.equal(found.x[..., 0], found.x[..., 1])
    assert torch.equal(found.marks["is_global"], found.x[..., 0] % 2 == 0)


def test_a_share_of_the_documents_moves():
    many = Batch(x=torch.arange(50).repeat(400, 1), y=torch.zeros(400).long())
    found = rolled(many, 0.3, generator())
    share = (found.x[:, 0] != 0).float().mean().item()
    assert 0.2 < share < 0.4


def test_only_training_moves():
    class Model(torch.nn.Module):
        def forward(self, x, **given):
            self.seen = x
            return torch.zeros(len(x), 2)

    model, objective = Model(), Classify(roll=1.0)
    objective.loss(model.eval(), batch(), generator())
    assert torch.equal(model.seen, batch().x)
    objective.loss(model.train(), batch(), generator())
    assert not torch.equal(model.seen, batch().x)
    Classify().loss(model.train(), batch(), generator())
    assert torch.equal(model.seen, batch().x)


def test_a_share_above_one_is_refused():
    with pytest.raises(WeftError, match=r"roll .* 0 to 1; got roll=2"):
        Classify(roll=2.0)

"""The shift test tells models that read places from models that read what happened."""

import pytest
import torch

from weft.arena.analysis.shift import Move, shift_test
from weft.errors import WeftError
from weft.objectives import Batch, Classify

VALID = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])


def batch():
    return Batch(x=torch.arange(15).view(3, 5), valid=VALID, y=torch.tensor([0, 1, 1]))


class Reads(torch.nn.Module):
    """Scores from the real tokens, by their places or without."""

    def __init__(self, places):
        super().__init__()
        self.places = places
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, valid=None, marks=None):
        weight = torch.arange(1.0, x.shape[1] + 1) if self.places else torch.ones(x.shape[1])
        total = (x * valid * weight).sum(1)
        return torch.stack((torch.zeros_like(total), total), dim=-1)


def test_a_shift_takes_the_oldest_tokens():
    found = Move(2).of(batch())
    assert found.x[0, :3].tolist() == [2, 3, 4]
    assert found.valid.tolist() == [
        [True] * 3 + [False] * 2,
        [True] + [False] * 4,
        [True] + [False] * 4,
    ]
    assert found.x[1, 0] == 7
    assert found.x[2, 0] == 10, "a row keeps its last token"


def test_a_cyclic_move_keeps_all_tokens():
    found = Move(2, cyclic=True).of(batch())
    assert found.x[0].tolist() == [2, 3, 4, 0, 1]
    assert found.x[1, :3].tolist() == [7, 5, 6]
    assert torch.equal(found.valid, VALID)


def test_a_model_that_reads_places_changes_its_scores():
    moves = [Move(1), Move(2, cyclic=True)]
    plain = shift_test(Reads(places=False), [batch()], Classify(), moves)
    placed = shift_test(Reads(places=True), [batch()], Classify(), moves)
    assert [row.move for row in plain] == ["none", "shift by 1", "cyclic by 2"]
    assert plain[0].change == placed[0].change == 0.0
    assert plain[2].change == 0.0, "the same tokens in another order"
    assert plain[1].change > 0.0, "a token is gone"
    assert placed[2].change > 0.0


def test_pairs_and_negative_shifts_are_refused():
    with pytest.raises(WeftError, match="0 or more places; got -1"):
        Move(-1)
    pair = Batch(x=torch.zeros(1, 3).long(), second=torch.zeros(1, 3).long())
    with pytest.raises(WeftError, match="has pairs"):
        Move(1).of(pair)

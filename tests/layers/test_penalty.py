"""Penalties: whatever module asks is counted once."""

import torch
from torch import nn

from weft.layers.penalty import penalties
from weft.mixers import base


class Asking(nn.Module):
    def __init__(self, amount):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.amount = amount

    def penalty(self):
        return None if self.amount is None else self.amount * self.weight


def test_every_module_that_asks_is_counted():
    shared = Asking(1.0)
    model = nn.Sequential(shared, nn.Sequential(Asking(3.0), nn.Linear(2, 2)), Asking(None), shared)
    total = penalties(model)
    assert total.item() == 2.0 + 6.0
    total.backward()
    assert shared.weight.grad.item() == 1.0


def test_none_where_nobody_asks():
    assert penalties(nn.Linear(2, 2)) is None
    assert penalties(nn.Sequential(Asking(None))) is None


def test_a_setting_of_that_name_is_no_request():
    layer = nn.Linear(2, 2)
    layer.penalty = 0.5
    assert penalties(layer) is None


def test_mixers_give_the_same_name():
    assert base.penalties is penalties

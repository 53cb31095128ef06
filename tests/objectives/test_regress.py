"""Squared errors, by hand."""

import pytest
import torch
from objective_parts import built, rows

from weft.errors import WeftError
from weft.objectives import Batch, Regress, higher_is_better
from weft.training import score


def test_the_sum_of_squares():
    model, batch = built(Regress()), rows()
    numbers = torch.tensor([0.5, -2.0, 1.25, 3.0], dtype=torch.float64)
    batch = Batch(x=batch.x, valid=batch.valid, y=numbers)
    loss = Regress().loss(model, batch, torch.Generator())
    truth = sum(
        (model(ids[valid][None]).item() - y.item()) ** 2
        for ids, valid, y in zip(batch.x, batch.valid, numbers, strict=True)
    )
    assert loss.total.item() == pytest.approx(truth, rel=1e-12)
    assert (int(loss.count), int(loss.right)) == (4, 0)
    found = score(model, [batch], Regress())
    assert found.metric == "mean squared error"
    assert found.score == pytest.approx(truth / 4)
    assert not higher_is_better(found.metric)
    other = Batch(x=batch.x, valid=batch.valid, y=numbers + 1)
    assert Regress().loss(model, other, torch.Generator()).total.item() != pytest.approx(truth)


def test_classes_are_numbers_too():
    loss = Regress().loss(built(Regress()), rows(), torch.Generator())
    assert loss.total.dtype == torch.float64


def test_rows_without_numbers():
    batch = rows()
    with pytest.raises(WeftError, match="one number per row"):
        Regress().loss(built(Regress()), Batch(x=batch.x, valid=batch.valid), torch.Generator())

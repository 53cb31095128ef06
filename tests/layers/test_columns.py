"""Embedding of events: tables of categories, numbers, and numbers that are missing."""

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding

KINDS = (5, 3)


@pytest.fixture
def embedder():
    return Embedding(channels=4, categories=KINDS, category_width=2).build(6).double()


def events(codes, numbers):
    return torch.tensor([[*codes, *numbers]], dtype=torch.float64)[None]  # (1, 1, 4)


def by_hand(embedder, codes, numbers):
    """The equation, number by number."""
    own = embedder.columns
    first, second = own.table[codes[0]], own.table[KINDS[0] + codes[1]]
    given = [0.0 if value != value else value for value in numbers]
    joined = torch.cat((first, second, torch.tensor(given, dtype=torch.float64)))
    absent = [row for row, value in zip(own.missing, numbers, strict=True) if value != value]
    return own.weight @ joined + own.bias + sum(absent)


@pytest.mark.parametrize(
    ("codes", "numbers"),
    [((0, 0), (0.5, -1.0)), ((4, 2), (2.0, float("nan"))), ((1, 1), (float("nan"),) * 2)],
)
def test_equals_the_equation(embedder, codes, numbers):
    found = embedder(events(codes, numbers))[0, 0]
    torch.testing.assert_close(found, by_hand(embedder, codes, numbers), rtol=1e-12, atol=1e-12)


def test_padding_may_hold_anything(embedder):
    real = events((1, 2), (0.1, 0.2))
    padded = torch.cat((real, torch.full((1, 1, 4), float("nan"), dtype=torch.float64)), dim=1)
    valid = torch.tensor([[True, False]])
    torch.testing.assert_close(embedder(padded, valid=valid)[:, :1], embedder(real))


@pytest.mark.parametrize(("code", "shown"), [(5.0, "got 5"), (-1.0, "got -1"), (0.5, "got 0.5")])
def test_codes_in_no_table_are_refused(embedder, code, shown):
    with pytest.raises(WeftError, match=f"channel 0 .* from 0 to 4; {shown}"):
        embedder(events((code, 0), (0.0, 0.0)))


def test_numbers_of_unit_variance_give_unit_variance():
    torch.manual_seed(0)
    embedder = Embedding(channels=30, categories=(50,) * 10, category_width=16).build(64)
    x = torch.cat((torch.randint(50, (8, 200, 10)), torch.randn(8, 200, 20)), dim=-1)
    assert 0.9 < embedder(x).std().item() < 1.1


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocab": 9, "categories": (3,)},
        {"channels": 1, "categories": (3, 3)},
        {"channels": 2, "categories": (0,)},
        {"channels": 2, "categories": (3,), "category_width": 0},
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(WeftError, match="categor"):
        Embedding(**wrong)

"""Checks of an objective: a sum and a count that the generator alone decides, and that teach all.

The batch holds ragged rows, a second document, classes and numbers, so that it suits most; give
`batch=` and `model=` for one that needs others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from weft.layers.embedding import Embedding
from weft.mixers.base import Frame
from weft.models import Encoder, Stack
from weft.objectives import OBJECTIVES, Batch, Head
from weft.registry import Registry
from weft.testing import promises
from weft.testing.tolerance import assert_finite

VOCAB, ROWS, LENGTH = 7, 12, 10


def check_draws(objective: Any, *, model: nn.Module | None = None, batch: Any = None) -> None:
    """The generator decides what is drawn; torch's own state has no part in it."""
    model, batch = model or built(objective), batch or rows()
    one = objective.loss(model, batch, _generator()).total
    torch.rand(3)
    two = objective.loss(model, batch, _generator()).total
    assert torch.equal(one, two), f"{objective}: the same generator gave {one:.6f} and {two:.6f}"


def check_loss(objective: Any, *, model: nn.Module | None = None, batch: Any = None) -> None:
    """A finite sum in float32 or wider, also under autocast, and a whole number of items."""
    model, batch = model or built(objective), batch or rows()
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found = objective.loss(model, batch, _generator())
        what = f"{objective}{', autocast' if enabled else ''}"
        assert found.total.shape == found.count.shape == (), f"{what}: total and count are ()"
        assert found.total.dtype in (torch.float32, torch.float64), f"{what}: {found.total.dtype}"
        assert_finite(found.total, what)
        assert found.count.dtype == torch.int64, f"{what}: count is {found.count.dtype}"
        assert 0 <= int(found.right) <= int(found.count), f"{what}: more items right than there are"
        assert int(found.count) > 0, f"{what}: no items"


def check_learning(objective: Any, *, model: nn.Module | None = None, batch: Any = None) -> None:
    """Every parameter of its model gets a finite gradient."""
    model = model or built(objective)
    objective.loss(model, batch or rows(), _generator()).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{objective}: {name} has no gradient"
        assert_finite(parameter.grad, f"{objective}: gradient of {name}")


def check_round_trip(objective: Any, *, registry: Registry = OBJECTIVES) -> None:
    """Its text and its dict read back as the same settings."""
    promises.compare_forms(objective, registry)


CHECKS: dict[str, Callable[..., None]] = {
    "draws": check_draws,
    "loss": check_loss,
    "learning": check_learning,
    "round_trip": check_round_trip,
}


def built(objective: Any) -> nn.Module:
    """A small model that learns it."""
    frame = Frame(dim=24, heads=2, length=2 * LENGTH)
    trunk = Encoder(
        embedding=Embedding(vocab=VOCAB, positions="sinusoidal"),
        stack=Stack(frame=frame, order="sfsf", mixer="full"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return objective.build(trunk, Head(classes=2)).build()


def rows() -> Batch:
    """Ragged rows, a second document each, and whether a row is long."""
    draw = _generator()
    sizes = torch.randint(4, LENGTH + 1, (ROWS, 1), generator=draw)
    valid = torch.arange(LENGTH) < sizes  # (b, n)
    x, second = (torch.randint(VOCAB, (ROWS, LENGTH), generator=draw) for _ in range(2))
    return Batch(
        x=x.masked_fill(~valid, 0),
        valid=valid,
        second=second.masked_fill(~valid, 0),
        second_valid=valid,
        y=(sizes[:, 0] > LENGTH // 2).long(),
    )


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)

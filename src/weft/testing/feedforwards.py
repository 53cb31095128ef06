"""Checks of a feed-forward: a function of each token by itself, or of those before it.

A variant with `start` and `step` remembers earlier tokens; it is checked against its own steps, the
others token by token. What a variant draws at random in training is drawn alike where two runs are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from weft.feedforward.base import FEEDFORWARDS
from weft.layers.penalty import penalties
from weft.registry import Registry
from weft.testing import promises
from weft.testing.cases import tokens
from weft.testing.tolerance import assert_close, assert_finite

DIM = 8


def check_round_trip(config: Any, *, registry: Registry = FEEDFORWARDS) -> None:
    """config -> dict -> JSON -> config and config -> str -> config."""
    promises.check_round_trip(config, registry=registry)


def check_shape(config: Any, *, dim: int = DIM) -> None:
    """(b, n, c) stays (b, n, c) in evaluation and training; `to_out` has the last weight."""
    for train in (True, False):
        module, x = built(config, dim).train(train), tokens(2, 5, dim)
        found = module(x).shape
        assert found == x.shape, f"{config}: {tuple(x.shape)} became {tuple(found)}"
    written = [part for name, part in module.named_modules() if name.split(".")[-1] == "to_out"]
    assert any(isinstance(getattr(part, "weight", None), Tensor) for part in written), (
        f"{config}: the module that writes the result is named to_out and has a weight, which a "
        "stack scales at initialisation"
    )


def check_tokens(config: Any, *, dim: int = DIM) -> None:
    """In evaluation other rows and neighbours change nothing; steps give the rows of forward."""
    module = built(config, dim).eval()
    for n in (1, 2, 7):
        x = tokens(3, n, dim)
        whole = module(x)
        for row in range(3):
            alone = module(x[row : row + 1])
            assert_close(alone[0], whole[row], f"{config}, n={n}: alone and in a batch")
            pieces = _steps(module, x[row : row + 1])
            assert_close(pieces[0], whole[row], f"{config}, n={n}: token by token and at once")


def check_padding(config: Any, *, dim: int = DIM) -> None:
    """The content of padding changes no real token, in training and in evaluation."""
    x, valid = tokens(2, 9, dim), torch.ones(2, 9, dtype=torch.bool)
    valid[0, :2] = valid[1, 3] = valid[1, 7:] = False
    for train in (True, False):
        what = f"{config}, {'training' if train else 'evaluation'}"
        module, found = built(config, dim).train(train), []
        for fill in (0.0, 1e4):
            torch.manual_seed(5)
            found.append(module(x.masked_fill(~valid[..., None], fill), valid=valid))
        assert_close(found[1][valid], found[0][valid], f"{what}: other padding")
        assert_finite(found[1], what)


def check_learning(config: Any, *, dim: int = DIM, silent: Collection[str] = ()) -> None:
    """Every parameter gets a finite gradient that is not 0; `silent` names those that may be 0."""
    module, x = built(config, dim).train(), tokens(4, 40, dim).requires_grad_()
    loss = module(x).square().sum()
    extra = penalties(module)
    (loss if extra is None else loss + extra).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{config}: {name} has no gradient"
        assert_finite(parameter.grad, f"{config}: gradient of {name}")
        assert parameter.grad.any() or name in silent, f"{config}: the gradient of {name} is 0"
    assert x.grad is not None, f"{config}: x has no gradient"
    assert_finite(x.grad, f"{config}: gradient of x")


def check_half_precision(config: Any, *, dim: int = DIM) -> None:
    """Under autocast, and in evaluation also cast: finite, and of that precision."""
    for dtype in (torch.bfloat16, torch.float16):
        module, x = built(config, dim, torch.float32), tokens(2, 9, dim)
        for train in (True, False):
            with torch.autocast("cpu", dtype=dtype):
                y = module.train(train)(x.float())
            assert y.dtype == dtype, f"{config}: under autocast to {dtype} it gives {y.dtype}"
            assert_finite(y, f"{config}, {dtype}")
            y.float().sum().backward()
        y = module.to(dtype).eval()(x.to(dtype))
        assert y.dtype == dtype, f"{config}: in {dtype} it gives {y.dtype}"


CHECKS: dict[str, Callable[..., None]] = {
    "shape": check_shape,
    "tokens": check_tokens,
    "padding": check_padding,
    "learning": check_learning,
    "half_precision": check_half_precision,
    "round_trip": check_round_trip,
}


def built(config: Any, dim: int = DIM, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module, its parameters stirred: a zero would hide a wrong formula."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = config.build(dim).to(dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def _steps(module: Any, x: Tensor) -> Tensor:
    """(1, n, c) one token at a time."""
    if not hasattr(module, "start"):
        return torch.cat([module(token) for token in x.split(1, dim=1)], dim=1)
    state, rows = module.start(1), []
    for token in x.split(1, dim=1):
        y, state = module.step(token, state)
        rows.append(y)
    return torch.cat(rows, dim=1)

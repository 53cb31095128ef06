"""Checks of marks: what a token says about itself reaches the equation and moves with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.layers.marks import Mark
from weft.mixers.base import Mixer
from weft.testing import cases
from weft.testing.cases import DIM, describe
from weft.testing.equality import gradients_of
from weft.testing.tolerance import assert_close

NUMBERS = 3  # different values of a mark that is a number


def check_marks(config: Any, *, length: int = 43, device: str = "cpu") -> None:
    """Each mark that the traits name is in the equation, moves with its token, and matters.

    Booleans mark a tenth of the tokens; numbers run from 0 to 2. `reference` takes marks by name.
    """
    for mark in config.traits.marks:
        for frame in (*cases.frames(config), *cases.framings(config)):
            if mark.causal or not frame.causal:
                _compare_marked(cases.build(config, frame, device=device), mark, length, device)


def drawn(mark: Mark, *shape: int, device: str = "cpu", seed: int = 0) -> Tensor:
    """Random values of a mark, the same at each call."""
    chance = torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
    found = chance < 0.1 if mark.kind == "boolean" else (chance * NUMBERS).long()
    return found.to(device)


def _compare_marked(mixer: Mixer, mark: Mark, n: int, device: str) -> None:
    what = describe(mixer.config, mixer.frame, f"n={n}, marked by {mark.name}")
    x = cases.tokens(3, n, DIM, device=device).requires_grad_()
    given = {mark.name: drawn(mark, 3, n, device=device)}
    valid = cases.lengths_mask([n, (n + 1) // 2, 1], n, device)
    assert_close(mixer(x, **given), mixer.reference(x, **given), f"{what}: forward and reference")
    ours, truth = mixer(x, valid=valid, **given), mixer.reference(x, valid, **given)
    assert_close(ours[valid], truth[valid], f"{what}, padded: forward and reference")
    wanted = cases.tokens(*x.shape, device=device, seed=1) * valid[..., None]
    own, true = (gradients_of(mixer, x, y, wanted) for y in (ours, truth))
    for name, gradient in true.items():
        found = own[name]
        if gradient is not None and found is not None:
            assert_close(found, gradient, f"{what}: gradient of {name}")
    with torch.no_grad():
        _compare_paddings(mixer, mark, what, device)
        plain = mixer(x)
    changed = not torch.allclose(mixer(x, **given), plain)
    assert changed, f"{what}: the mark changes nothing, so it does not reach the mechanism"
    _check_refusals(mixer, mark, x, what)


def _compare_paddings(mixer: Mixer, mark: Mark, what: str, device: str) -> None:
    """Rows alone, and padded anywhere into one batch: marks move with their tokens."""
    lengths, longest = [29, 17, 8], 29
    rows = [cases.tokens(1, n, DIM, device=device, seed=n) for n in lengths]
    marks = [drawn(mark, 1, n, device=device, seed=n) for n in lengths]
    alone = [mixer(row, **{mark.name: own}) for row, own in zip(rows, marks, strict=True)]
    for side, valid in cases.paddings(lengths, longest, device).items():
        x = cases.tokens(3, longest, DIM, device=device, seed=9) * 10
        spread = drawn(mark, 3, longest, device=device, seed=4)  # padding may be marked, too
        for row in range(3):
            x[row, valid[row]], spread[row, valid[row]] = rows[row][0], marks[row][0]
        y = mixer(x, valid=valid, **{mark.name: spread})
        for row, own in enumerate(alone):
            detail = f"{what}, padded on the {side}: row {row}"
            assert_close(y[row : row + 1, valid[row]], own, detail)


def _check_refusals(mixer: Mixer, mark: Mark, x: Tensor, what: str) -> None:
    whole = drawn(mark, *x.shape[:2]).to(x.device)
    wrong = {
        "too short": {mark.name: whole[:, 1:]},
        "of another type": {mark.name: whole.double()},
        "that it does not know": {f"no_{mark.name}": whole},
    }
    for kind, given in wrong.items():
        try:
            mixer(x, **given)
        except WeftError:
            continue
        except Exception as error:
            name = type(error).__name__
            raise AssertionError(f"{what}: a mark {kind} raised {name}: {error}") from error
        raise AssertionError(f"{what}: a mark {kind} is not refused")

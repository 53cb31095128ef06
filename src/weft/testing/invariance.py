"""Checks that what a row may not read changes nothing: the future, padding, other rows, the past.

Where the same shapes run through the same kernels the comparison is bitwise; where shapes differ it
is in fp64, so a real dependence stands out from rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.mixers.base import Mixer
from weft.testing import cases
from weft.testing.cases import DIM, describe
from weft.testing.tolerance import assert_close, assert_identical


def check_causality(config: Any, *, length: int = 67, device: str = "cpu") -> None:
    """No output reads a later token: bit for bit under any change of the future, and its absence.

    One batch row per cut: tokens from the cut on are changed, one of them or all of them.
    """
    for frame in (*cases.frames(config, causal=True), *cases.framings(config)):
        if not frame.causal:
            continue
        mixer = cases.build(config, frame, torch.float32, device)
        cuts = torch.arange(1, length, device=device)
        index = torch.arange(length, device=device)
        x = cases.tokens(1, length, DIM, dtype=torch.float32, device=device)
        x = x.expand(len(cuts), -1, -1).contiguous()
        other = cases.tokens(*x.shape, dtype=torch.float32, device=device, seed=1) * 3
        past = index < cuts[:, None]
        with torch.no_grad():
            before = mixer(x)
            for changed, name in ((index == cuts[:, None], "one token"), (~past, "all tokens")):
                after = mixer(torch.where(changed[..., None], other, x))
                what = describe(config, frame, f"n={length}: outputs before the change of {name}")
                assert_identical(after[past], before[past], what)
        _compare_prefixes(cases.build(config, frame, device=device), length, device)


def check_padding(config: Any, *, device: str = "cpu") -> None:
    """Padding left, right or inside, of any content, changes no real row; it yields 0 itself."""
    lengths, longest = [41, 17, 9, 1, 0], 41
    for frame in (*cases.frames(config), *cases.framings(config)):
        mixer = cases.build(config, frame, device=device)
        alone = [_alone(mixer, row, n, longest, device) for row, n in enumerate(lengths)]
        for side, valid in cases.paddings(lengths, longest, device).items():
            what = describe(config, frame, f"padded on the {side}")
            x = cases.tokens(len(lengths), longest, DIM, device=device, seed=9) * 10
            for row, n in enumerate(lengths):
                x[row, valid[row]] = _sequence(row, longest, device)[0, :n]
            with torch.no_grad():
                y = mixer(x, valid=valid)
            for row, n in enumerate(lengths):
                assert_close(y[row, valid[row]], alone[row][0], f"{what}, {n} real tokens")
            assert not y[~valid].any(), f"{what}: the outputs at padding are not 0"


def check_batch_composition(config: Any, *, device: str = "cpu") -> None:
    """A row's output is its own: alone, among other rows, in any order, beside longer rows."""
    n, longest = 19, 43
    for frame in cases.frames(config):
        mixer = cases.build(config, frame, device=device)
        what = describe(config, frame)
        x = cases.tokens(4, n, DIM, device=device)
        with torch.no_grad():
            together = mixer(x)
            for row in range(4):
                alone = mixer(x[row : row + 1])
                assert_close(
                    together[row : row + 1], alone, f"{what}: row {row} alone and in a batch"
                )
            order = torch.tensor([2, 0, 3, 1], device=device)
            assert_close(mixer(x[order]), together[order], f"{what}: rows in another order")
            loud = torch.cat((x[:1], cases.tokens(3, n, DIM, device=device, seed=1) * 20))
            assert_close(mixer(loud)[:1], together[:1], f"{what}: beside other rows")
            padded = torch.zeros(2, longest, DIM, dtype=x.dtype, device=device)
            padded[0, :n], padded[1] = x[0], cases.tokens(longest, DIM, device=device, seed=2)
            valid = cases.lengths_mask([n, longest], longest, device)
            beside = mixer(padded, valid=valid)[:1, :n]
            assert_close(beside, together[:1], f"{what}: beside a longer row")


def check_batch_history(config: Any, *, device: str = "cpu") -> None:
    """What was computed before changes nothing, bit for bit: no cache, no switch, no counter."""
    for frame in cases.frames(config):
        mixer = cases.build(config, frame, torch.float32, device)
        what = describe(config, frame)
        x = cases.tokens(2, 43, DIM, dtype=torch.float32, device=device)
        with torch.no_grad():
            before = mixer(x)
            for b, n in ((1, 1), (3, 7), (1, 129), (2, 43)):
                other = cases.tokens(b, n, DIM, dtype=torch.float32, device=device, seed=n)
                mixer(other)
                valid = cases.lengths_mask([(n + 1) // 2] * b, n, device)
                mixer(other, valid=valid)
                assert_identical(mixer(x), before, f"{what}: again, after a batch of {b} × {n}")
        fresh = cases.build(config, frame, torch.float32, device)
        with torch.no_grad():
            fresh(x[:, :5])
            assert_identical(fresh(x), before, f"{what}: in a module that saw a short batch first")
        trained = mixer(x.requires_grad_())
        assert_close(trained, before, f"{what}: with gradients on", tolerance=1e-5)


def _compare_prefixes(mixer: Mixer, length: int, device: str) -> None:
    x = cases.tokens(2, length, DIM, device=device)
    with torch.no_grad():
        whole = mixer(x)
        for n in (1, 2, 7, 8, 9, 33, length - 1):
            what = describe(mixer.config, mixer.frame, f"the first {n} of {length} tokens alone")
            assert_close(mixer(x[:, :n]), whole[:, :n], what)


def _sequence(row: int, longest: int, device: str) -> Tensor:
    return cases.tokens(1, longest, DIM, device=device, seed=row)


def _alone(mixer: Mixer, row: int, n: int, longest: int, device: str) -> Tensor:
    x = _sequence(row, longest, device)[:, :n]
    with torch.no_grad():
        return mixer(x) if n else x

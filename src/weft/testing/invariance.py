"""Checks that what a row may not read changes nothing: the future, padding, other rows, the past.

Where the same shapes run through the same kernels the comparison is bitwise; where shapes differ it
is in fp64, so a real dependence stands out from rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from weft.mixers.base import Mixer
from weft.testing import cases
from weft.testing.cases import DIM, describe
from weft.testing.tolerance import assert_close, assert_identical


def check_causality(config: Any, *, length: int = 67, device: str = "cpu") -> None:
    """No output reads a later token: the future may change, or be absent, bit for bit."""
    for frame in (*cases.frames(config, causal=True), *cases.framings(config, causal=True)):
        mixer = cases.build(config, frame, torch.float32, device)
        compare_futures(mixer, length, range(1, length), device)
        prefixes = (1, 2, 7, 8, 9, 33, length - 1)
        compare_prefixes(cases.build(config, frame, device=device), length, prefixes, device)


def check_padding(config: Any, *, device: str = "cpu") -> None:
    """Padding left, right or inside, of any content, changes no real row; it yields 0 itself."""
    for frame in (*cases.frames(config), *cases.framings(config)):
        mixer = cases.build(config, frame, device=device)
        compare_paddings(mixer, [41, 17, 9, 1, 0], device)
        compare_padding_content(mixer, [41, 17, 9, 1, 0], device)


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
            loud[1], loud[2] = torch.nan, torch.inf
            what_not = f"{what}: beside rows that are not finite"
            assert_close(mixer(loud)[:1], together[:1], what_not)
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


def compare_futures(mixer: Mixer, n: int, cuts: Iterable[int], device: str = "cpu") -> None:
    """Change the tokens from each cut on, one of them or all: outputs before it keep every bit.

    One batch row per cut, so that shapes and kernels stay the same.
    """
    cut = torch.tensor(list(cuts), device=device)[:, None]
    index = torch.arange(n, device=device)
    dtype = next((p.dtype for p in mixer.parameters()), torch.float32)
    x = cases.tokens(1, n, mixer.frame.dim, dtype=dtype, device=device)
    x = x.expand(len(cut), -1, -1).contiguous()
    other = cases.tokens(*x.shape, dtype=dtype, device=device, seed=1) * 3
    past = index < cut
    with torch.no_grad():
        before = mixer(x)
        for changed, name in ((index == cut, "one token"), (~past, "all tokens")):
            after = mixer(torch.where(changed[..., None], other, x))
            detail = f"n={n}: outputs before the change of {name}"
            what = describe(mixer.config, mixer.frame, detail)
            assert_identical(after[past], before[past], what)


def compare_prefixes(mixer: Mixer, n: int, sizes: Iterable[int], device: str = "cpu") -> None:
    """The first tokens alone give what they give at the head of n tokens."""
    x = cases.tokens(2, n, mixer.frame.dim, device=device)
    with torch.no_grad():
        whole = mixer(x)
        for size in sizes:
            what = describe(mixer.config, mixer.frame, f"the first {size} of {n} tokens alone")
            assert_close(mixer(x[:, :size]), whole[:, :size], what)


def compare_paddings(mixer: Mixer, lengths: list[int], device: str = "cpu") -> None:
    """Rows of these lengths, each alone and all padded into one batch; the first is the longest."""
    longest, dim = lengths[0], mixer.frame.dim
    rows = [cases.tokens(1, n, dim, device=device, seed=row) for row, n in enumerate(lengths)]
    with torch.no_grad():
        alone = [mixer(row) if row.shape[1] else row for row in rows]
    for side, valid in cases.paddings(lengths, longest, device).items():
        what = describe(mixer.config, mixer.frame, f"padded on the {side}")
        x = cases.tokens(len(lengths), longest, dim, device=device, seed=9) * 10
        for row, real in enumerate(rows):
            x[row, valid[row]] = real[0]
        with torch.no_grad():
            y = mixer(x, valid=valid)
        for row, expected in enumerate(alone):
            assert_close(y[row, valid[row]], expected[0], f"{what}, {lengths[row]} real tokens")
        assert not y[~valid].any(), f"{what}: the outputs at padding are not 0"


def compare_padding_content(mixer: Mixer, lengths: list[int], device: str = "cpu") -> None:
    """NaN, infinity or the largest number in padding: no bit of a real row differs.

    A mechanism that hides padding by a weight of 0 would make NaN of it.
    """
    longest, dim = lengths[0], mixer.frame.dim
    x = cases.tokens(len(lengths), longest, dim, device=device)
    for side, valid in cases.paddings(lengths, longest, device).items():
        with torch.no_grad():
            expected = mixer(x, valid=valid)
            for content in cases.NOT_NUMBERS:
                what = describe(mixer.config, mixer.frame, f"{content} as padding on the {side}")
                y = mixer(x.masked_fill(~valid[..., None], content), valid=valid)
                assert_identical(y, expected, what)

"""Comparisons that say where two results part, with tolerances that come from the data.

Three strengths: `assert_identical` (bit for bit), `assert_close` (the same function in fp64, so any
difference above rounding is a wrong formula) and `assert_within_rounding` (a lower precision may
stray from the fp64 truth about as far as the plain equation in that precision does).
"""

from __future__ import annotations

import torch
from torch import Tensor

FP64_TOLERANCE = 1e-10
# Another order of summation may round differently; a wrong formula is off by far more.
ROUNDING_FACTOR = 4.0


def assert_finite(out: Tensor, what: str) -> None:
    """Fail on NaN or infinity, naming the first place."""
    bad = ~out.isfinite()
    assert not bad.any(), (
        f"{what}: {int(bad.sum())} of {out.numel()} values are not finite, "
        f"the first at {_place(bad)} of {tuple(out.shape)}"
    )


def assert_identical(out: Tensor, expected: Tensor, what: str) -> None:
    """Fail unless the two agree bit for bit."""
    _same_shape(out, expected, what)
    assert_finite(out, what)
    out, expected = out.detach(), expected.detach()
    differ = out != expected
    largest = (out.double() - expected.double()).abs().max() if differ.any() else 0.0
    assert not differ.any(), (
        f"{what}: {int(differ.sum())} of {out.numel()} values differ, by up to {largest:.1e}, "
        f"the first at {_place(differ)}"
    )


def assert_close(
    out: Tensor, expected: Tensor, what: str, tolerance: float = FP64_TOLERANCE
) -> None:
    """Fail when the two differ by more than `tolerance` times the largest expected value (or 1)."""
    _same_shape(out, expected, what)
    assert_finite(out, what)
    assert_finite(expected, f"{what}, what it is compared with")
    if not out.numel():
        return
    out, expected = out.detach().double(), expected.detach().double()
    error = (out - expected).abs()
    allowed = tolerance * max(1.0, float(expected.abs().max()))
    assert error.max() <= allowed, (
        f"{what}: error {error.max():.1e} exceeds {allowed:.1e}; {int((error > allowed).sum())} of "
        f"{out.numel()} values, the first at {_place(error > allowed)} of {tuple(out.shape)}"
    )


def assert_within_rounding(
    out: Tensor, same_dtype: Tensor, exact: Tensor, what: str = "output"
) -> None:
    """`out` may stray from the fp64 truth a few times as far as the equation in its own dtype does.

    All are (..., c) with one token per row. The median token is judged, because a mechanism that
    sorts or hashes may rightly send a few tokens elsewhere when scores round differently.
    """
    _same_shape(out, exact, what)
    assert_finite(out, what)
    unit = torch.finfo(out.dtype).eps * exact.abs().max()
    budget = ROUNDING_FACTOR * (_typical_error(same_dtype, exact) + unit)
    error = _typical_error(out, exact)
    assert error <= budget, (
        f"{what}: typical error {error:.1e} in {out.dtype} exceeds the rounding budget {budget:.1e}"
    )


def _typical_error(out: Tensor, exact: Tensor) -> Tensor:
    return (out.detach().double() - exact.detach()).abs().amax(-1).median()


def _same_shape(out: Tensor, expected: Tensor, what: str) -> None:
    assert out.shape == expected.shape, (
        f"{what}: the shapes differ, {tuple(out.shape)} and {tuple(expected.shape)}"
    )


def _place(bad: Tensor) -> tuple[int, ...]:
    return tuple(bad.nonzero()[0].tolist())

"""Comparisons fail when they should, and say where."""

import pytest
import torch

from weft.testing import (
    assert_close,
    assert_finite,
    assert_identical,
    assert_within_rounding,
)

X = torch.arange(6, dtype=torch.float64).view(2, 3)


def changed(by, at=(1, 2), x=X):
    y = x.clone()
    y[at] += by
    return y


def test_identical_takes_no_bit_of_difference():
    assert_identical(X.clone(), X, "x")
    with pytest.raises(AssertionError, match=r"x: 1 of 6 values differ, by up to .*\(1, 2\)"):
        assert_identical(changed(1e-15), X, "x")


def test_close_scales_with_the_values():
    assert_close(changed(4e-10), X, "x")
    with pytest.raises(AssertionError, match=r"error 6.0e-10 exceeds 5.0e-10; 1 of 6 values"):
        assert_close(changed(6e-10), X, "x")
    assert_close(changed(0.5), X, "x", tolerance=0.1)


def test_close_takes_empty_tensors():
    assert_close(X[:0], X[:0], "x")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_never_passes(value):
    bad = changed(value)
    with pytest.raises(
        AssertionError, match=r"1 of 6 values are not finite, the first at \(1, 2\)"
    ):
        assert_finite(bad, "x")
    for compare in (assert_identical, assert_close):
        with pytest.raises(AssertionError, match="not finite"):
            compare(bad, bad, "x")
    with pytest.raises(AssertionError, match="what it is compared with"):
        assert_close(X, bad, "x")


@pytest.mark.parametrize("compare", [assert_identical, assert_close])
def test_shapes_are_compared_not_broadcast(compare):
    with pytest.raises(AssertionError, match=r"shapes differ, \(1, 3\) and \(2, 3\)"):
        compare(X[:1], X, "x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_forgiven_and_mistakes_are_not(dtype):
    exact = torch.randn(50, 8, dtype=torch.float64)
    rounded = exact.to(dtype)
    assert_within_rounding(rounded, rounded, exact)
    wrong = (exact * (1 + 20 * torch.finfo(dtype).eps)).to(dtype)
    with pytest.raises(AssertionError, match="exceeds the rounding budget"):
        assert_within_rounding(wrong, rounded, exact)


def test_a_few_tokens_may_go_elsewhere_but_must_be_finite():
    exact = torch.randn(50, 8, dtype=torch.float64)
    out = exact.half()
    out[3] += 1
    assert_within_rounding(out, exact.half(), exact)
    out[:30] += 1
    with pytest.raises(AssertionError, match="rounding budget"):
        assert_within_rounding(out, exact.half(), exact)
    out = exact.half()
    out[3, 0] = float("nan")
    with pytest.raises(AssertionError, match="not finite"):
        assert_within_rounding(out, exact.half(), exact)

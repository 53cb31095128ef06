"""Torch's fused CPU attention with a log-sum-exp that can be learned through."""

import pytest
import torch

from kernels.oracle import assert_same, gradients, heads, oracle
from weft.kernels.dense.cpu import fused_attention
from weft.patterns import Causal, Full, Sliding


def run(inputs, pattern, scale=0.3):
    """Fused, under the additive mask of a pattern."""
    n, m = inputs[0].shape[2], inputs[1].shape[2]
    seen = pattern.sees(torch.arange(m - n, m)[:, None], torch.arange(m)[None, :], m)
    added = torch.zeros(n, m, dtype=inputs[0].dtype).masked_fill(~seen, -torch.inf)
    return fused_attention(*inputs, added[None, None], scale)


def check(found, expected, inputs):
    assert_same(found, expected)
    for pick in ([0], [1], [0, 1]):  # values alone, log-sum-exp alone, both
        ours = gradients([found[a] for a in pick], inputs)
        theirs = gradients([expected[a] for a in pick], inputs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same([one], [other])


@pytest.mark.parametrize("pattern", [Full(), Causal(), Sliding(5)], ids=str)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (9, 9), (40, 40), (7, 33), (130, 200)])
def test_values_and_gradients(pattern, n, m):
    inputs = [x.requires_grad_() for x in heads(2, 3, n, 8, m=m)]
    check(run(inputs, pattern), oracle(*inputs, pattern, scale=0.3), inputs)


def test_without_a_mask_and_with_the_causal_one():
    for causal, pattern in ((False, Full()), (True, Causal())):
        inputs = [x.requires_grad_() for x in heads(1, 2, 20, 8)]
        found = fused_attention(*inputs, None, 0.2, causal)
        check(found, oracle(*inputs, pattern, scale=0.2), inputs)


def test_any_strides():
    """The operator itself reads a last axis that is not contiguous as if it were."""
    flat = [torch.randn(1, 2, 8, 30, dtype=torch.float64) for _ in range(3)]
    inputs = [x.mT.detach().requires_grad_() for x in flat]
    assert all(x.stride(-1) != 1 for x in inputs)
    found = fused_attention(*inputs, None, 0.3)
    expected = oracle(*inputs, Full(), scale=0.3)
    assert_same(found, expected)
    steps = torch.randn(1, 2, 8, 30, dtype=torch.float64).mT
    ours = torch.autograd.grad((found[0] * steps).sum(), inputs)
    theirs = torch.autograd.grad((expected[0] * steps).sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        assert_same([one], [other])


def test_the_operator_alone_has_no_gradient_for_the_log_sum_exp():
    """Why this module exists: what torch returns is cut from the graph."""
    q, k, v = (x.requires_grad_() for x in heads(1, 1, 4, 8))
    _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    assert not lse.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(dtype):
    inputs = [x.requires_grad_() for x in heads(1, 2, 50, 16, dtype=dtype)]
    found, expected = run(inputs, Causal()), oracle(*inputs, Causal(), scale=0.3)
    tolerance = 8 * torch.finfo(dtype).eps
    assert_same(found, expected, tolerance)
    for ours, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        assert_same([ours], [theirs.double()], tolerance * float(theirs.abs().max() + 1))


def test_teeth():
    """A log-sum-exp without its gradient is caught."""
    inputs = [x.requires_grad_() for x in heads(1, 2, 12, 8)]
    out, lse = fused_attention(*inputs, None, 0.3)
    expected = oracle(*inputs, Full(), scale=0.3)
    with pytest.raises(AssertionError):
        check((out, lse.detach() + 0 * out.sum()), expected, inputs)

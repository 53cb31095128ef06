"""Attention over disjoint sets of keys, merged, is attention over all of them."""

import pytest
import torch

from kernels.oracle import assert_same, gradients, heads, oracle
from weft.kernels.attend.merge import merge
from weft.kernels.dense.reference import dense_attention
from weft.patterns import Predicate

CUTS = {"two": [10, 27], "one by one": list(range(1, 38)), "one": [37], "empty set": [10, 10, 37]}


def parts(q, k, v, cuts, mask=None):
    """Attention over keys between the cuts; an empty set reads nothing."""
    found = []
    for start, end in zip([0, *cuts], [*cuts, 37], strict=True):
        own = (torch.arange(37) >= start) & (torch.arange(37) < end)
        found.append(dense_attention(q, k, v, mask=own if mask is None else own & mask))
    return found


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_any_cut_of_the_keys(cuts):
    inputs = [x.requires_grad_() for x in heads(2, 3, 5, 8, m=37)]
    merged = merge(parts(*inputs, cuts))
    whole = oracle(*inputs, Predicate(lambda i, j: j >= 0))
    assert_same(merged, whole)
    for ours, theirs in zip(gradients(merged, inputs), gradients(whole, inputs), strict=True):
        assert_same([ours], [theirs])


def test_one_set_is_itself():
    only = (torch.randn(1, 1, 2, 3), torch.randn(1, 1, 2))
    assert merge([only]) is only


def test_rows_that_some_or_all_sets_leave_empty():
    inputs = [x.requires_grad_() for x in heads(1, 2, 4, 8, m=37)]
    mask = torch.ones(4, 37, dtype=torch.bool)
    mask[0], mask[1, :20], mask[2, 20:] = False, False, False
    merged = merge(parts(*inputs, [20], mask))
    assert (merged[0][:, :, 0] == 0).all()
    assert (merged[1][:, :, 0] == -torch.inf).all()
    assert_same(merged, dense_attention(*inputs, mask=mask))
    grads = gradients(merged, inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][:, :, 0] == 0).all()


def test_large_and_small_scores_meet():
    """The weights of far-apart sets neither overflow nor vanish from the sum."""
    values = [torch.full((1, 1, 1, 2), x) for x in (1.0, 2.0, 3.0)]
    lses = [torch.tensor([[[x]]]) for x in (900.0, -900.0, 900.0)]
    out, lse = merge(list(zip(values, lses, strict=True)))
    assert out.allclose(torch.tensor(2.0))
    assert lse.item() == pytest.approx(900.0 + torch.tensor(2.0).log().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weighs_in_float32(dtype):
    q, k, v = heads(1, 2, 6, 8, m=37, dtype=dtype)
    out, lse = merge(parts(q, k, v, [9, 25]))
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    whole = oracle(q, k, v, Predicate(lambda i, j: j >= 0))
    assert_same((out, lse), whole, tolerance=8 * torch.finfo(dtype).eps)


def test_a_key_in_two_sets_counts_twice():
    """Teeth: merging needs disjoint sets, and a comparison with the whole notices."""
    q, k, v = heads(1, 1, 3, 8, m=37)
    overlapping = [*parts(q, k, v, [20]), parts(q, k, v, [20])[0]]
    with pytest.raises(AssertionError):
        assert_same(merge(overlapping), oracle(q, k, v, Predicate(lambda i, j: j >= 0)))

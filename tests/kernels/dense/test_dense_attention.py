"""Dense attention, on which every other test may lean, against torch and against sums by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from kernels.oracle import assert_same, gradients, heads, oracle
from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.patterns import Full


def test_one_query_by_hand():
    q, k, v = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 1.0], [2.0, 0.0]]), [3.0, -5.0]
    a, b = math.exp(2.5 / 2**0.5), math.exp(2.0 / 2**0.5)
    out, lse = dense_attention(q[None, None], k[None, None], torch.tensor(v)[None, None, :, None])
    assert out.item() == pytest.approx((3 * a - 5 * b) / (a + b))
    assert lse.item() == pytest.approx(math.log(a + b))


@pytest.mark.parametrize("g", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_equals_torch(g, scale):
    q, k, v = heads(2, 4, 9, 8, g, 13)
    mask = torch.rand(2, 4, 9, 13) < 0.6
    mask[..., 0] = True
    bias = torch.randn(4, 9, 13, dtype=torch.float64)
    added = bias.masked_fill(~mask, -torch.inf)
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=added, scale=scale, enable_gqa=g < 4
    )
    out, lse = dense_attention(q, k, v, mask=mask, bias=bias, scale=scale)
    assert_same([out], [expected])
    shared = k.repeat_interleave(4 // g, dim=1)
    scores = q @ shared.mT * (8**-0.5 if scale is None else scale) + added
    assert_same([lse], [scores.logsumexp(-1)])


def test_values_may_be_wider():
    q, k, _ = heads(1, 2, 5, 4)
    v = torch.randn(1, 2, 5, 7, dtype=torch.float64)
    assert_same(dense_attention(q, k, v), oracle(q, k, v, Full()))


def test_rows_without_keys():
    inputs = [x.requires_grad_() for x in heads(1, 2, 4, 8)]
    mask = torch.eye(4, dtype=torch.bool)
    mask[2] = False
    out, lse = dense_attention(*inputs, mask=mask)
    assert (out[:, :, 2] == 0).all()
    assert (lse[:, :, 2] == -torch.inf).all()
    assert_same([out[:, :, [0, 1, 3]]], [inputs[2][:, :, [0, 1, 3]]])
    grads = gradients([out, lse], inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[:, :, 2] == 0).all() for grad in grads)


def test_half_precision_sums_in_float32():
    q, k, v = heads(1, 1, 1, 8, m=3000, dtype=torch.float16)
    out, lse = dense_attention(q * 0, k, v.abs())
    assert lse.dtype == torch.float32
    assert lse.item() == pytest.approx(math.log(3000), rel=1e-6)
    assert_same([out], oracle(q * 0, k, v.abs(), Full())[:1], tolerance=2e-3)


def test_dropout_keeps_the_mean_and_the_log_sum_exp():
    q, k, v = heads(1, 1, 2000, 4, m=50)
    q = q * 0
    v = torch.ones_like(v)
    out, lse = dense_attention(q, k, v, dropout=0.3)
    assert lse.allclose(torch.full_like(lse, math.log(50)))
    # Each of 50 weights of 1/50 is kept with 0.7 and divided by it.
    assert abs(out.mean() - 1) < 0.01
    assert abs(out.var() - 0.3 / 0.7 / 50) < 0.002


def test_heads_are_shared_in_runs():
    x = torch.arange(3.0).view(1, 3, 1, 1)
    assert expand_heads(x, 6).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert expand_heads(x, 3) is x


def test_bias_of_all_heads():
    i, j = torch.arange(4)[:, None], torch.arange(5)[None, :]
    made = dense_bias(lambda head, i, j: 100 * head + 10 * i + j, 3, i, j)
    assert made.shape == (3, 4, 5)
    assert made[2, 3, 1] == 231
    rows = dense_bias(lambda head, i, j: head * 1000 + i - j, 2, i[None], j[None] + 7)
    assert rows.shape == (2, 1, 4, 5)
    assert rows[1, 0, 2, 3] == 1000 + 2 - 10

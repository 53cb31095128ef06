"""The Triton kernels, interpreted, on the rows and keys of a rank: what `compute` gives them."""

import numpy as np
import pytest
import torch

import weft.kernels.block_sparse.lists as block_sparse_lists
import weft.kernels.block_sparse.triton as block_sparse
from kernels.programs import small_programs
from weft.kernels.attend.masking import make_labels
from weft.kernels.dense.reference import dense_attention
from weft.patterns import pattern, select
from weft.patterns.derive import mask
from weft.patterns.lower import Part
from weft.scale.context import Shards, reading

LENGTH, WIDTH, BLOCK = 96, 16, 16


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_sparse, "TUNING", {BLOCK: small_programs(16, 16, 4, 1)})
    block_sparse_lists.lists_of.cache_clear()
    yield
    block_sparse_lists.lists_of.cache_clear()


@pytest.mark.parametrize(
    ("text", "balance", "padded"),
    [
        ("causal & (sliding(9) | columns(20, width=2))", "head_tail", True),
        ("sliding(20)", "none", False),
    ],
)
def test_rows_and_keys_of_a_rank(text, balance, padded):
    reads, shards = pattern(text), Shards(LENGTH, 3, balance)
    rows = shards.positions(1)
    cols = np.union1d(rows, reading(reads, shards).needs[1])
    q = torch.randn(2, 2, len(rows), WIDTH, requires_grad=True)
    k, v = torch.randn(2, 2, 1, len(cols), WIDTH).requires_grad_().unbind(0)
    valid = torch.as_tensor(cols) < torch.tensor([[LENGTH], [50]]) if padded else None
    labels = make_labels(valid, None, len(rows))
    part = Part(reads, select(rows), select(cols), LENGTH)
    settings = {"block": BLOCK, "scale": WIDTH**-0.5, "labels": labels}
    out, lse = block_sparse.block_sparse_part(q, k, v, part, **settings)
    seen = mask(reads, LENGTH)[0][rows][:, cols]
    seen = seen if valid is None else seen & valid[:, None, None]
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth, truth_lse = dense_attention(*wide, mask=seen)
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), truth_lse, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(out)
    found = torch.autograd.grad((out * weight).sum(), (q, k, v))
    right = torch.autograd.grad((truth * weight).sum(), wide)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)

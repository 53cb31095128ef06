"""Lists of key blocks, row by row: against the equation under the written-out mask, in fp64."""

import pytest
import torch

from weft.kernels.block_sparse.ragged import attend_lists

B, H, G, D, BLOCK = 2, 4, 2, 8, 4


def example(n):
    torch.manual_seed(n)
    q, k, v = (torch.randn(B, h, n, D, dtype=torch.float64) for h in (H, G, G))
    blocks = -(-n // BLOCK)
    lists = torch.stack([torch.randperm(blocks)[:3] for _ in range(B * blocks)])
    lists = torch.where(torch.rand(lists.shape) < 0.3, -1, lists).unflatten(0, (B, -1))
    valid = torch.arange(n) < torch.tensor([n, max(1, n - 5)])[:, None]
    return q, k, v, valid, lists


def truth(q, k, v, valid, lists):
    n = q.shape[2]
    seen = torch.zeros(B, n, n, dtype=torch.bool)
    for row in range(B):
        for i in range(n):
            for j in range(n):
                seen[row, i, j] = valid[row, j] and j // BLOCK in lists[row, i // BLOCK].tolist()
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    weights = torch.exp(q @ k.mT * D**-0.5) * seen[:, None]
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp(min=1e-300), 0.0) @ v


@pytest.mark.parametrize("n", [12, 13, 30])
def test_reads_its_lists_and_nothing_else(n):
    q, k, v, valid, lists = example(n)
    out = attend_lists(q, k, v, valid, lists, BLOCK)
    torch.testing.assert_close(out, truth(q, k, v, valid, lists), rtol=0, atol=1e-12)
    other = lists.roll(1, dims=1)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(out, truth(q, k, v, valid, other), rtol=0, atol=1e-12)


def test_gradients_are_those_of_the_equation():
    q, k, v, valid, lists = example(13)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    upstream = torch.randn_like(q)
    found = torch.autograd.grad(attend_lists(*inputs, valid, lists, BLOCK), inputs, upstream)
    wanted = torch.autograd.grad(truth(*inputs, valid, lists), inputs, upstream)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)

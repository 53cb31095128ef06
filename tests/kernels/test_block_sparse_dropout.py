"""Dropout inside the kernels: which weights fell is read off, and the rest is the equation."""

import pytest
import torch

import weft.kernels.block_sparse as block_sparse
from weft.kernels.attend import attend
from weft.patterns import Causal, Sliding, Strided
from weft.patterns.derive import mask

N, D, HEADS, RATE = 48, 16, 2, 0.3
PATTERNS = {
    "window": Sliding(20),
    "two_parts": Causal() & (Sliding(6) | Strided(8)),
}


@pytest.fixture(autouse=True)
def _fixed_seeds(monkeypatch):
    small = {size: dict.fromkeys(("forward", "dq", "dkdv"), (16, 4, 1)) for size in (128, 64)}
    monkeypatch.setattr(block_sparse, "TUNING", small)
    seeds = torch.arange(1, 17) * 7_919

    def fixed(rate, device, parts=16):
        return block_sparse.Dropout(rate, seeds) if rate else None

    monkeypatch.setattr(block_sparse.Dropout, "of", fixed)


def dropped(q, k, v, pattern):
    return attend(q, k, v, pattern, kernel="triton", dropout=RATE)


def weights(q, k, pattern):
    """The dropped weights (b, h, n, m), read off by values that are columns of the identity."""
    parts = []
    for start in range(0, N, D):
        ones = torch.zeros(N, D)
        ones[range(start, start + D), range(D)] = 1.0
        parts.append(dropped(q, k, ones.expand(*k.shape[:2], N, D), pattern))
    return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("name", PATTERNS)
def test_weights_fall_or_grow_and_gradients_follow(name):
    torch.manual_seed(0)
    pattern = PATTERNS[name]
    q, k, v = (torch.randn(2, HEADS, N, D).requires_grad_() for _ in range(3))
    seen = mask(pattern, N)
    full = (q @ k.mT * D**-0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    found = weights(q, k, pattern).detach()
    kept = found > 0
    torch.testing.assert_close(found, torch.where(kept, full / (1 - RATE), 0.0).detach())
    share = kept[:, :, seen[0]].float().mean()
    assert abs(share - (1 - RATE)) < 0.05
    assert not torch.equal(kept[0, 0], kept[0, 1])
    assert not torch.equal(kept[0], kept[1])
    expected = torch.where(kept, full / (1 - RATE), 0.0) @ v
    out = dropped(q, k, v, pattern)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(out)
    ours = torch.autograd.grad(out, (q, k, v), upstream)
    theirs = torch.autograd.grad(expected, (q, k, v), upstream)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_new_draw_differs(monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, N, D) for _ in range(3))
    one = dropped(q, k, v, Sliding(20))
    assert torch.equal(one, dropped(q, k, v, Sliding(20)))
    other = torch.arange(1, 17) * 104_729
    monkeypatch.setattr(
        block_sparse.Dropout, "of", lambda rate, *_: block_sparse.Dropout(rate, other)
    )
    assert not torch.equal(one, dropped(q, k, v, Sliding(20)))

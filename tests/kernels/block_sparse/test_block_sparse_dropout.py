"""Dropout inside the kernels: which weights fell is read off, and the rest is the equation."""

import pytest
import torch

import weft.kernels.block_sparse.triton as block_sparse
from kernels.programs import small_programs
from weft.patterns import Causal, Sliding, Strided
from weft.patterns.derive import mask
from weft.patterns.lower import lower

N, D, HEADS, RATE, BLOCK = 64, 16, 2, 0.3, 16
PATTERNS = {  # and the parts that they lower to
    "window": (Sliding(20), 1),
    "two_parts": (Causal() & (Sliding(8) | Strided(8)), 2),
}


@pytest.fixture(autouse=True)
def _fixed_seeds(monkeypatch):
    monkeypatch.setattr(block_sparse, "TUNING", {BLOCK: small_programs(16, 16, 4, 1)})
    seeds = torch.arange(1, 17) * 7_919

    def fixed(rate, device, parts=16):
        return block_sparse.Dropout(rate, seeds) if rate else None

    monkeypatch.setattr(block_sparse.Dropout, "of", fixed)


def dropped(q, k, v, pattern):
    given = {"block": BLOCK, "scale": D**-0.5, "dropout": RATE}
    return block_sparse.block_sparse_attention(q, k, v, lower(pattern, N, N, BLOCK), **given)[0]


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
    pattern, parts = PATTERNS[name]
    assert len(lower(pattern, N, N, BLOCK).parts) == parts
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

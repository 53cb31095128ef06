"""Dropout inside the kernels on a GPU: what fell is read off, and the rest is the equation.

python tests/gpu/test_dropout_gpu.py        works without pytest's collection, too
"""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gpu_checks import attempt, compare

from weft.kernels.attend.api import attend
from weft.kernels.block_sparse.lists import lists_of_several
from weft.kernels.block_sparse.triton import attend_several
from weft.kernels.dropout import Dropout
from weft.kernels.lsh.triton import attend_runs, runs_of_buckets, runs_of_order
from weft.patterns import Sliding
from weft.patterns.derive import mask

pytestmark = pytest.mark.gpu
N, RATE, COUNT, LENGTHS = 384, 0.3, 5, (384, 200)


@contextmanager
def fixed_seeds():
    """Every call draws the same numbers."""
    of, seeds = Dropout.of, torch.arange(1, 17, device="cuda") * 7_919
    Dropout.of = lambda rate, device, parts=16: Dropout(rate, seeds) if rate else None
    try:
        yield
    finally:
        Dropout.of = of


def window(d):
    scale = d**-0.5

    def run(q, v, dropout):
        return attend(q, q, v, Sliding(90), kernel="triton", dropout=dropout)

    seen = mask(Sliding(90), N, device="cuda").expand(2, 4, N, N)
    return run, lambda q: q @ q.mT * scale, seen


def several(d):
    scale, layouts = d**-0.5, np.random.default_rng(0).random((3, 6, 6)) < 0.5
    layouts[:, range(6), range(6)] = True  # each block reads itself
    lists = lists_of_several(layouts.nonzero(), layouts.shape, 64, torch.device("cuda"))
    pick = [2, 1]
    valid = torch.arange(N, device="cuda") < torch.tensor(LENGTHS, device="cuda")[:, None]

    def run(q, v, dropout):
        picked = torch.tensor(pick, device="cuda", dtype=torch.int32)
        return attend_several(q, q, v, valid, lists, picked, scale=scale, dropout=dropout)

    block = torch.arange(N, device="cuda") // 64
    seen = torch.as_tensor(layouts, device="cuda")[pick][:, block[:, None], block[None]]
    seen = (seen & valid[:, None, :])[:, None].expand(2, 4, N, N)
    return run, lambda q: q @ q.mT * scale, seen


def sorted_runs(d, ring):
    buckets = torch.randint(0, COUNT, (2, 4, 1, N), device="cuda")
    if ring:
        length = torch.full((2,), N, device="cuda")
        runs = runs_of_order(buckets, COUNT, length, chunk=50, lookback=1, padded=False)
    else:
        runs = runs_of_buckets(buckets, COUNT, chunk=50, lookback=1)

    def run(q, v, dropout):
        return attend_runs(q, v, runs, scale=1.0, eps=1e-6, dropout=dropout)

    def scores(q):
        return q @ (q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()).mT

    return run, scores, None


def read_off(run, q, dropout):
    """The weights (b, h, n, n), by values that are columns of the identity."""
    d, parts = q.shape[-1], []
    for start in range(0, N, d):
        ones = torch.zeros(N, d, device="cuda", dtype=q.dtype)
        width = min(d, N - start)
        ones[range(start, start + width), range(width)] = 1.0
        parts.append(run(q, ones.expand(*q.shape[:2], N, d), dropout)[..., :width])
    return torch.cat(parts, -1).detach()


CASES = {
    "window": window,
    "several layouts": several,
    "ring": lambda d: sorted_runs(d, True),
    "buckets": lambda d: sorted_runs(d, False),
}


# The block-sparse kernels take heads of 16, 32, 64 and 128, the others any.
PAIRS = [(name, d) for name in CASES for d in (8, 16, 64) if d > 8 or name in ("ring", "buckets")]


@pytest.mark.parametrize(("name", "d"), PAIRS)
def test_what_falls_is_the_same_on_the_way_back(name, d):
    torch.manual_seed(0)
    run, scores, seen = CASES[name](d)
    made = [torch.randn(2, N, 4, d, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    q, v = (x.transpose(1, 2).requires_grad_() for x in made)
    with fixed_seeds():
        if seen is None:
            seen = read_off(run, q, 0.0) > 0
        kept = read_off(run, q, RATE) > 0
        share = kept[seen].double().mean().item()
        assert abs(share - (1 - RATE)) < 0.02, share
        assert not torch.equal(kept[0, 0], kept[0, 1])
        some = seen.any(-1, keepdim=True)
        full = scores(q.double()).masked_fill(~seen & some, float("-inf")).softmax(-1)
        expected = torch.where(kept & seen, full / (1 - RATE), 0.0) @ v.double()
        # Alone, a token returns its own value, which dropout leaves.
        alone = seen.sum(-1, keepdim=True) == 1 if name in ("ring", "buckets") else ~some
        rows = (some & ~alone).double()
        compare(run(q, v, RATE) * rows, expected * rows, (q, v), limit=2e-2)


if __name__ == "__main__":
    for pair in PAIRS:
        print(attempt(test_what_falls_is_the_same_on_the_way_back, pair), flush=True)

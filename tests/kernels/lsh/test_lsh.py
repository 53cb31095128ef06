"""The kernels that gather inside themselves, interpreted on a CPU, against lists made by hand."""

from dataclasses import replace

import pytest
import torch

from weft.kernels.block_sparse import triton as block_sparse
from weft.kernels.launch import Program
from weft.kernels.lsh import triton as lsh_triton
from weft.kernels.lsh.triton import attend_runs, can_fuse, runs_of_buckets, runs_of_order

COUNT, EPS, RATE = 3, 1e-3, 0.3


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(
            lsh_triton, name, dict.fromkeys(lsh_triton.WIDTHS, Program(16, 16, 4, 1))
        )
    monkeypatch.setattr(lsh_triton, "ROWS", 16)
    monkeypatch.setattr(lsh_triton, "LONGEST_STEP", 16)


def before_in_bucket(numbers, i, j, chunk, back):
    """Whether i reads j: j is earlier in i's bucket, and at most `back` chunks away."""
    if j >= i or numbers[j] != numbers[i]:
        return False
    rank = [sum(numbers[t] == numbers[i] for t in range(end)) for end in (i, j)]
    return rank[0] // chunk - rank[1] // chunk <= back


def counts_of_buckets(numbers, n, length, chunk, back, ahead):
    pairs = [[before_in_bucket(numbers, i, j, chunk, back) for j in range(n)] for i in range(n)]
    return torch.tensor(pairs).double()


def counts_of_order(numbers, n, length, chunk, back, ahead):
    order = sorted(range(length), key=lambda i: (numbers[i], i))
    ring = [order[start : start + chunk] for start in range(0, length, chunk)]
    counts = torch.zeros(n, n, dtype=torch.float64)
    for at, own in enumerate(ring):
        for near in {(at + o) % len(ring) for o in range(-back, ahead + 1)}:
            counts[torch.tensor(own)[:, None], torch.tensor(ring[near])] += 1
    return counts.fill_diagonal_(0)


def truth(x, v, buckets, lengths, rule, sizes, scale):
    """Σ_j count_ij exp(scale · x_i·k_j) v_j, normalised; a row of zeros counts itself."""
    h, n = x.shape[1:3]
    lists = [
        [sum(rule(numbers, n, length, *sizes) for numbers in head) for head in row]
        for row, length in zip(buckets.tolist(), lengths, strict=True)
    ]
    counts = torch.stack([torch.stack(row) for row in lists])  # (b, h, n, n)
    alone = ~counts.any(-1, keepdim=True)
    counts = torch.where(alone, torch.eye(n, dtype=torch.float64), counts)
    k = x / (x.square().sum(-1, keepdim=True) + EPS).sqrt()
    weights = (scale * x @ k.mT + counts.log()).softmax(-1)
    real = (torch.arange(n) < torch.tensor(lengths)[:, None])[:, None, :, None]
    return (weights @ v.repeat_interleave(h // v.shape[1], 1)) * real


def compare(x, v, runs, expected, scale, limit=2e-5):
    out = attend_runs(x, v, runs, scale=scale, eps=EPS)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (x, v), upstream)
    wanted = torch.autograd.grad(expected, (x, v), upstream.double(), retain_graph=True)
    for one, other in zip((out, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=limit)


def made(b, h, g, n, rounds, d=16):
    """x, v and buckets; in memory order (b, n, h, d)."""
    x, v = (torch.randn(b, n, k, d).transpose(1, 2).requires_grad_() for k in (h, g))
    return x, v, torch.randint(0, COUNT, (b, h, rounds, n))


@pytest.mark.parametrize(
    ("chunk", "back", "n", "h"),
    [(4, 1, 37, 2), (5, 0, 20, 1), (3, 2, 40, 1), (10**9, 10**9, 20, 1)],
)
def test_runs_of_buckets(chunk, back, n, h):
    x, v, buckets = made(1, h, 1, n, rounds=2)
    runs = runs_of_buckets(buckets, COUNT, chunk=chunk, lookback=back)
    given = (buckets, [n], counts_of_buckets, (chunk, back, 0), 0.7)
    compare(x, v, runs, truth(x.double(), v.double(), *given), 0.7)


@pytest.mark.parametrize(
    ("chunk", "back", "ahead", "n", "lengths"),
    [
        (4, 1, 0, 37, [37]),
        (5, 0, 0, 20, [20]),
        (3, 2, 1, 40, [40]),
        (64, 1, 1, 20, [20]),
        (10**9, 0, 50, 18, [18]),
        (7, 50, 0, 18, [18]),
        (4, 2, 1, 33, [33, 5]),
        (4, 1, 0, 18, [0, 18]),
        (4, 1, 0, 1, [1]),
    ],
)
def test_runs_of_order(chunk, back, ahead, n, lengths):
    x, v, buckets = made(len(lengths), 1, 1, n, rounds=2)
    sizes = {"chunk": chunk, "lookback": back, "lookahead": ahead}
    padded = min(lengths) < n
    runs = runs_of_order(buckets, COUNT, torch.tensor(lengths), **sizes, padded=padded)
    given = (buckets, lengths, counts_of_order, tuple(sizes.values()), 1.0)
    compare(x, v, runs, truth(x.double(), v.double(), *given), 1.0)


@pytest.mark.parametrize("d", [32, 128])
def test_widths_and_tokens_without_others(d):
    """With as many buckets as tokens, all are alone and return their values."""
    x, v, _ = made(1, 1, 1, 20, 1, d)
    buckets = torch.randperm(20).view(1, 1, 1, 20)
    runs = runs_of_buckets(buckets, 20, chunk=4, lookback=1)
    out = attend_runs(x, v, runs, scale=1.0)
    assert torch.equal(out, v)
    dx, dv = torch.autograd.grad(out.sum(), (x, v))
    assert not dx.any()
    assert torch.equal(dv, torch.ones_like(v))


@pytest.mark.parametrize("ring", [False, True])
def test_dropped_weights_fall_or_grow_and_gradients_follow(monkeypatch, ring):
    """Which weights fell is read off, by values that are the identity; the rest is the equation."""
    fixed = block_sparse.Dropout(RATE, torch.arange(1, 17) * 7_919)
    monkeypatch.setattr(block_sparse.Dropout, "of", lambda rate, device: fixed if rate else None)
    n = 32
    x, v = (torch.randn(2, 1, n, n).requires_grad_() for _ in range(2))
    buckets = torch.randint(0, COUNT, (2, 1, 1, n))
    if ring:
        length = torch.tensor([n, n])
        runs = runs_of_order(buckets, COUNT, length, chunk=5, lookback=1, padded=False)
        rule = (buckets, [n, n], counts_of_order, (5, 1, 0), 1.0)
    else:
        runs = runs_of_buckets(buckets, COUNT, chunk=8, lookback=1)
        rule = (buckets, [n, n], counts_of_buckets, (8, 1, 0), 1.0)
    identity = torch.eye(n).expand(2, 1, n, n)
    full = truth(x.double(), identity.double(), *rule)  # (b, h, n, n)
    found = attend_runs(x, identity, runs, scale=1.0, eps=EPS, dropout=RATE).detach()
    alone = full.detach() == identity
    kept = (found > 0) | alone
    expected = torch.where(kept, full / torch.where(alone, 1.0, 1 - RATE), 0.0)
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-4, atol=1e-6)
    share = kept[(full > 0) & ~alone].double().mean()
    assert abs(share - (1 - RATE)) < 0.1
    assert not torch.equal(kept[0], kept[1])
    out = attend_runs(x, v, runs, scale=1.0, eps=EPS, dropout=RATE)
    upstream = torch.randn_like(out)
    slopes = torch.autograd.grad(out, (x, v), upstream)
    wanted = torch.autograd.grad(expected @ v.double(), (x, v), upstream.double())
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_runs_are_what_they_say():
    buckets = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1]).view(1, 1, 1, 8)
    runs = runs_of_buckets(buckets, 2, chunk=2, lookback=1)
    assert runs.token.flatten().tolist() == [0, 3, 6, 1, 2, 4, 5, 7]
    assert runs.lo.flatten().tolist() == [0, 0, 0, 3, 3, 3, 3, 5]
    assert runs.hi.flatten().tolist() == [3, 3, 3, 7, 7, 8, 8, 8]
    assert runs.start.tolist() == [0, 3, 8]
    runs = runs_of_order(buckets, 2, torch.tensor([6]), chunk=2, lookback=1)
    assert runs.token.flatten().tolist() == [0, 3, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "broken",
    [
        lambda runs: replace(runs, lo=(runs.lo - 1).clamp(min=0)),
        lambda runs: replace(runs, lo=runs.lo + (torch.arange(37) - runs.lo > 1)),
        lambda runs: replace(runs, hi=torch.maximum(runs.hi - 1, torch.arange(1, 38).int())),
        lambda runs: replace(runs, token=runs.token.flip(-1)),
    ],
    ids=["one too many", "one too few", "a reader forgotten", "another order"],
)
def test_broken_buckets_are_noticed(broken):
    x, v, buckets = made(1, 1, 1, 37, rounds=1)
    runs = broken(runs_of_buckets(buckets, COUNT, chunk=4, lookback=1))
    given = (buckets, [37], counts_of_buckets, (4, 1, 0), 1.0)
    with pytest.raises(AssertionError):
        compare(x, v, runs, truth(x.double(), v.double(), *given), 1.0)


@pytest.mark.parametrize(
    "changed",
    [{"chunk": 5}, {"lookback": 0}, {"lookahead": 1}, {"length": torch.tensor([36])}],
    ids=lambda changed: next(iter(changed)),
)
def test_broken_orders_are_noticed(changed):
    x, v, buckets = made(1, 1, 1, 37, rounds=1)
    sizes = {"chunk": 4, "lookback": 1, "lookahead": 0}
    runs = runs_of_order(buckets, COUNT, torch.tensor([37]), **sizes, padded=False)
    given = (buckets, [37], counts_of_order, tuple(sizes.values()), 1.0)
    with pytest.raises(AssertionError):
        compare(x, v, replace(runs, **changed), truth(x.double(), v.double(), *given), 1.0)


def test_only_half_precision_on_a_gpu_is_fused():
    assert not can_fuse(torch.zeros(1, 1, 4, 64, dtype=torch.bfloat16))
    assert not can_fuse(torch.zeros(1, 1, 4, 64))

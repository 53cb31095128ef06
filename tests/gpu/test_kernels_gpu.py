"""Kernels that were written on a CPU, on a GPU against fp64: graphs, dropout.

python tests/gpu/test_kernels_gpu.py        works without pytest's collection, too
"""

from itertools import product

import pytest
import torch
from gpu_checks import attempt, compare

from weft.kernels.attend.api import attend
from weft.kernels.attend.planner import remember_spec
from weft.kernels.dropout import Dropout
from weft.patterns import Blocked, Causal, Full, Sliding, Window2d
from weft.patterns.derive import mask

pytestmark = pytest.mark.gpu
PATTERNS = {
    "tiles": Blocked(Window2d(4, 2), 128),
    "wide tiles": Blocked(Window2d(4, 3), 128),
    "window": Sliding(257),
    "causal": Causal() & Sliding(300),
}


def heads(n, d, count=3, b=2, h=4):
    torch.manual_seed(0)
    made = [torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def dense(q, k, v, pattern, valid=None):
    seen = mask(pattern, q.shape[2], device="cuda")
    if valid is not None:  # padding asks for everything: no row is empty, and no one looks at it
        seen = seen & valid[:, None, None] | ~valid[:, None, :, None]
    q, k, v = (x.double() for x in (q, k, v))
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize("d", [16, 32, 64, 128])
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_patterns_equal_dense(name, d, compiled):
    pattern, inputs = remember_spec(PATTERNS[name]), heads(4096, d)

    def call(q, k, v):
        return attend(q * 1, k, v, pattern) * 1

    torch.compiler.reset()
    run = torch.compile(call, fullgraph=True, dynamic=False) if compiled else call
    compare(run(*inputs), dense(*inputs, pattern), inputs)


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_padded_dense_attention_equals_dense(pattern, compiled):
    pattern, inputs, n = remember_spec(pattern), heads(1000, 64), 1000
    valid = torch.arange(n, device="cuda") < torch.tensor([[n], [n // 3]], device="cuda")

    def call(q, k, v):
        return attend(q * 1, k, v, pattern, valid=valid) * 1

    torch.compiler.reset()
    run = torch.compile(call, fullgraph=True, dynamic=False) if compiled else call
    real = valid[:, None, :, None]
    wanted = dense(*inputs, pattern, valid).masked_fill(~real, 0.0)
    compare(run(*inputs) * real, wanted, inputs)


@pytest.mark.parametrize("pattern", [Full(), Causal(), Sliding(257)], ids=str)
@pytest.mark.parametrize("d", [8, 16, 64, 128])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_aligned_rows_equal_dense(pattern, d, compiled):
    """Torch's flash kernel over real tokens and padding as sequences of their own."""
    pattern, inputs, n = remember_spec(pattern), heads(1000, d, b=3), 1000
    lengths = torch.tensor([n, n // 3, 1], device="cuda")[:, None]
    valid = torch.arange(n, device="cuda") < lengths

    def call(q, k, v):
        return attend(q * 1, k, v, pattern, valid=valid, aligned=True) * valid[:, None, :, None]

    torch.compiler.reset()
    run = torch.compile(call, fullgraph=True, dynamic=False) if compiled else call
    real = valid[:, None, :, None]
    compare(run(*inputs), dense(*inputs, pattern, valid).masked_fill(~real, 0.0), inputs)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_aligned_rows_drop_their_share(rate):
    q, k, v = heads(1000, 64)
    valid = torch.arange(1000, device="cuda") < torch.tensor([[1000], [400]], device="cuda")
    given = {"valid": valid, "aligned": True, "dropout": rate}
    sums = [attend(q, k, torch.ones_like(v), Full(), **given).float()[..., 0] for _ in range(2)]
    real = valid[:, None].expand_as(sums[0])
    assert abs(sums[0][real].mean().item() - 1) < 0.02
    assert 0.005 < sums[0][real].std().item() < 1.0
    assert not torch.equal(*sums)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_dropout_keeps_its_share_and_its_mean(rate):
    q, k, v = heads(2048, 64)
    ones = torch.ones_like(v)
    sums = attend(q, k, ones, Sliding(257), dropout=rate).float()[..., 0]  # (b, h, n)
    assert abs(sums.mean().item() - 1) < 0.02
    assert 0.01 < sums.std().item() < 1.0
    other = attend(q, k, ones, Sliding(257), dropout=rate).float()[..., 0]
    assert not torch.equal(sums, other)
    assert Dropout.of(0.0, q.device) is None


if __name__ == "__main__":
    cases = list(product(PATTERNS, (16, 32, 64, 128), (False, True)))
    calls = [(test_patterns_equal_dense, args) for args in cases]
    cases = product((Full(), Causal()), (False, True))
    calls += [(test_padded_dense_attention_equals_dense, args) for args in cases]
    cases = product((Full(), Causal(), Sliding(257)), (8, 16, 64, 128), (False, True))
    calls += [(test_aligned_rows_equal_dense, args) for args in cases]
    calls += [(test_aligned_rows_drop_their_share, (rate,)) for rate in (0.1, 0.6)]
    calls += [(test_dropout_keeps_its_share_and_its_mean, (rate,)) for rate in (0.1, 0.6)]
    for check, args in calls:
        print(attempt(check, args), flush=True)

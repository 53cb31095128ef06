"""The fused loss against torch's own, and the bytes that it needs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.kernels import linear_cross_entropy as module
from weft.kernels.linear_cross_entropy import linear_cross_entropy


def case(rows, dim, vocab, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocab, dim, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(vocab, (rows,), generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), targets


def plain(x, weight, targets):
    scores = x @ weight.T
    return F.cross_entropy(scores, targets, reduction="none"), scores.argmax(-1)


def gap(fused, x, weight, targets, chunk):
    """The largest difference of losses, best tokens and gradients, with uneven upstream slopes."""
    slope = torch.linspace(-1, 2, len(x), dtype=x.dtype)
    found = []
    for loss, best in (fused(x, weight, targets, chunk), plain(x, weight, targets)):
        slopes = torch.autograd.grad((loss * slope).sum(), [x, weight])
        found.append([loss.detach(), best.to(loss.dtype), *slopes])
    return max((a - b).abs().max().item() for a, b in zip(*found, strict=True))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 12), st.integers(1, 11))
def test_equals_the_plain_loss(rows, dim, vocab, chunk):
    assert gap(linear_cross_entropy, *case(rows, dim, vocab), chunk) < 1e-12


def test_equals_numpy():
    x, weight, targets = case(5, 3, 7)
    scores = x.detach().numpy() @ weight.detach().numpy().T
    expected = np.log(np.exp(scores).sum(1)) - scores[np.arange(5), targets.numpy()]
    loss, _ = linear_cross_entropy(x, weight, targets, 2)
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=1e-12)


def no_target(rows, matrix, dtype=None):
    return (rows.to(matrix.dtype) @ matrix.T).roll(1, 1)


@pytest.mark.parametrize("broken", [no_target, lambda rows, matrix: 1.01 * (rows @ matrix.T)])
def test_the_comparison_has_teeth(monkeypatch, broken):
    monkeypatch.setattr(module, "_scores", broken)
    assert gap(linear_cross_entropy, *case(6, 3, 5), 4) > 1e-3


def test_no_rows_have_no_loss():
    x, weight, targets = case(0, 3, 5)
    loss, best = linear_cross_entropy(x, weight, targets, 4)
    assert loss.shape == best.shape == (0,)


def test_large_scores_stay_finite():
    x, weight, targets = case(4, 3, 5)
    loss, _ = linear_cross_entropy(x * 1e4, weight, targets, 2)
    assert loss.isfinite().all()
    torch.testing.assert_close(loss, plain(x * 1e4, weight, targets)[0])


def test_autocast_sums_the_gradient_of_the_table_in_float32():
    """Many equal rows: a running sum in bfloat16 stops growing, one in float32 does not."""
    x = torch.ones(4096, 2, requires_grad=True)
    weight = torch.zeros(2, 2, requires_grad=True)
    targets = torch.zeros(4096, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = linear_cross_entropy(x, weight, targets, 1)
    assert loss.dtype == torch.float32
    loss.sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[-2048.0] * 2, [2048.0] * 2]))
    assert weight.grad.dtype == x.grad.dtype == torch.float32


def peak_bytes(run):
    """The most bytes that torch's allocator held beyond the start, by its own record."""
    with torch.profiler.profile(profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held, most = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("chunk", [16, 64])
def test_memory_grows_with_the_chunk_and_not_with_the_rows(chunk):
    rows, dim, vocab = 1024, 8, 512
    x, weight, targets = case(rows, dim, vocab, torch.float32)

    def fused():
        linear_cross_entropy(x, weight, targets, chunk)[0].sum().backward()

    scores = rows * vocab * 4
    assert peak_bytes(lambda: plain(x, weight, targets)[0].sum().backward()) > 2 * scores
    # A chunk of scores at a time, a copy of it, and what is as small as x or the table.
    assert peak_bytes(fused) < 4 * chunk * vocab * 4 + 4 * (rows + vocab) * (dim + 4) * 4

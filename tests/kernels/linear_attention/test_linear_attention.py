"""Linear attention against the matrix of all scores, and against the token-by-token recurrence."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.errors import WeftError
from weft.kernels.linear_attention.reference import (
    causal_linear_attention,
    linear_attention,
    linear_step,
)

EPS = 1e-6


def sample(b=2, h=4, g=2, n=37, f=5, e=3, dtype=torch.float64):
    q, k = torch.rand(b, h, n, f, dtype=dtype), torch.rand(b, g, n, f, dtype=dtype)
    return q, k, torch.randn(b, g, n, e, dtype=dtype), -torch.rand(b, g, n, dtype=dtype)


def matrix_form(q, k, v, causal):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("bhnf,bhmf->bhnm", q, k)
    scores = scores.tril() if causal else scores
    return torch.einsum("bhnm,bhme->bhne", scores / (scores.sum(-1, keepdim=True) + EPS), v)


def recurrence(q, k, v, log_decay):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    log_decay = log_decay.repeat_interleave(q.shape[1] // log_decay.shape[1], dim=1)
    values, weights, out = 0.0, 0.0, []
    for t in range(q.shape[2]):
        kept = log_decay[:, :, t].exp()
        values = kept[..., None, None] * values + k[:, :, t, :, None] * v[:, :, t, None, :]
        weights = kept[..., None] * weights + k[:, :, t]
        top = torch.einsum("bhf,bhfe->bhe", q[:, :, t], values)
        out.append(top / ((q[:, :, t] * weights).sum(-1, keepdim=True) + EPS))
    return torch.stack(out, dim=2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 40])
def test_equals_the_matrix_of_all_scores(n, causal):
    q, k, v, _ = sample(n=n)
    out = linear_attention(q, k, v, causal=causal, chunk=8)
    torch.testing.assert_close(out, matrix_form(q, k, v, causal), rtol=0, atol=1e-12)


def test_the_chunk_is_no_part_of_the_result():
    q, k, v, decay = sample()
    for chunk in (1, 4, 16, 64):
        out = linear_attention(q, k, v, causal=True, log_decay=decay, chunk=chunk)
        torch.testing.assert_close(out, recurrence(q, k, v, decay), rtol=0, atol=1e-12)


def test_gradients_with_decay_are_those_of_the_recurrence():
    ours = [x.requires_grad_() for x in sample(n=23)]
    truth = [x.detach().clone().requires_grad_() for x in ours]
    q, k, v, decay = ours
    out = linear_attention(q, k, v, causal=True, log_decay=decay, chunk=4)
    wanted = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, ours, wanted),
        torch.autograd.grad(recurrence(*truth), truth, wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_strong_decay_forgets_without_overflow():
    q, k, v, _ = sample(n=300, dtype=torch.float32)
    decay = torch.full((2, 2, 300), -50.0, requires_grad=True)
    out = linear_attention(q, k, v, causal=True, log_decay=decay)
    expected = recurrence(*(x.double() for x in (q, k, v, decay)))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4)
    assert torch.autograd.grad(out.sum(), decay)[0].isfinite().all()


@pytest.mark.parametrize("decays", [False, True])
def test_continues_from_its_sums(decays):
    q, k, v, decay = sample()
    decay = decay if decays else torch.zeros_like(decay)
    expected = recurrence(q, k, v, decay)
    out, sums = [], None
    for begin, end in ((0, 9), (9, 10), (10, 11), (11, 37)):
        piece = slice(begin, end)
        part = [x[:, :, piece] for x in (q, k, v)]
        settings = {"log_decay": decay[:, :, piece] if decays else None, "eps": EPS}
        if end - begin == 1:
            y, sums = linear_step(*part, sums, **settings)
        else:
            y, sums = causal_linear_attention(*part, sums=sums, chunk=4, **settings)
        out.append(y)
    torch.testing.assert_close(torch.cat(out, dim=2), expected, rtol=0, atol=1e-12)
    assert sums.values.shape == (2, 2, 5, 3)
    assert sums.weights.shape == (2, 2, 5)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_not_read_whatever_it_holds(causal):
    q, k, v, _ = sample(n=20)
    valid = torch.arange(20) < torch.tensor([13, 20])[:, None]
    expected = linear_attention(q[:1, :, :13], k[:1, :, :13], v[:1, :, :13], causal=causal)
    k[0, :, 13:], v[0, :, 13:] = 1e6, torch.nan
    out = linear_attention(q, k, v, causal=causal, valid=valid)
    torch.testing.assert_close(out[:1, :, :13], expected, rtol=0, atol=1e-12)


def test_no_key_at_all_gives_zero():
    q, k, v, _ = sample()
    out = linear_attention(q, k, v, valid=torch.zeros(2, 37, dtype=torch.bool))
    assert not out.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_sums_are_kept_in_float32(dtype):
    # 70,000 ones overflow float16, and bfloat16 stops counting at 256.
    q = k = torch.ones(1, 1, 70_000, 2, dtype=dtype)
    v = torch.linspace(-1, 1, 70_000).view(1, 1, -1, 1).to(dtype)
    out = linear_attention(q, k, v, causal=True)
    expected = v.double().cumsum(2) / torch.arange(1, 70_001).view(1, 1, -1, 1)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.01)
    everything = linear_attention(q, k, v + 1)
    torch.testing.assert_close(everything, torch.ones_like(v), rtol=0, atol=0.01)
    sums = causal_linear_attention(q, k, v)[1]
    assert sums.values.dtype == torch.float32


@pytest.mark.parametrize("causal", [False, True])
def test_autocast_leaves_the_sums_alone(causal):
    q = k = torch.ones(1, 1, 70_000, 2)
    v = torch.ones(1, 1, 70_000, 1)
    with torch.autocast("cpu", dtype=torch.float16):
        out = linear_attention(q, k, v, causal=causal)
        _, sums = causal_linear_attention(q, k, v)
        step, _ = linear_step(q[:, :, :1], k[:, :, :1], v[:, :, :1], sums)
    assert (out - 1).abs().max() < 1e-5
    assert (step - 1).abs().max() < 1e-5


def test_nothing_as_large_as_all_states_is_made():
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return out

    n, f = 2048, 32
    q, k, v, decay = sample(b=1, h=1, g=1, n=n, f=f, e=f, dtype=torch.float32)
    for log_decay in (None, decay):
        with Largest() as largest:
            linear_attention(q, k, v, causal=True, log_decay=log_decay, chunk=32)
        assert 0 < largest.numel <= 2 * n * f


def test_a_decay_needs_a_direction():
    q, k, v, decay = sample()
    with pytest.raises(WeftError, match="needs causal=True"):
        linear_attention(q, k, v, log_decay=decay)

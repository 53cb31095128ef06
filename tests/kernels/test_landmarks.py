"""Reading landmarks by the kernels, interpreted on a CPU, and the inverse, against fp64."""

import pytest
import torch

import weft.kernels.landmarks as kernel
import weft.kernels.landmarks_fused as fused
from weft.mixers import Frame, Nystromformer

CASES = [(1, 16, 1, None), (50, 16, 6, None), (40, 32, 17, (17, 3)), (40, 16, 40, None)]


def truth(q, k, v, there):
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    if there is not None:
        scores = scores.masked_fill(~there[:, None, None], -torch.inf)
    return scores.softmax(-1) @ v.double()


def given(n, d, r, counts=None):
    torch.manual_seed(n + r)
    q = torch.randn(2, n, 2, d).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(2, 2, r, d).requires_grad_() for _ in range(2))
    there = None if counts is None else torch.arange(r) < torch.tensor(counts)[:, None]
    return (q, k, v), there


def compare(out, expected, inputs):
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("programs", [1, 10])
@pytest.mark.parametrize(("n", "d", "r", "counts"), CASES)
def test_values_and_gradients_are_those_of_softmax(monkeypatch, n, d, r, counts, programs):
    monkeypatch.setattr(fused, "ROWS", 16)
    monkeypatch.setattr(fused, "_PROGRAMS", programs)
    inputs, there = given(n, d, r, counts)
    compare(fused.fused_read(*inputs, there), truth(*inputs, there), inputs)


@pytest.mark.parametrize("programs", [1, 10])
@pytest.mark.parametrize(("n", "d", "r", "lengths"), [(1, 16, 1, None), (50, 16, 6, (50, 13))])
def test_landmarks_ask_tokens(monkeypatch, n, d, r, lengths, programs):
    monkeypatch.setattr(fused, "ROWS", 16)
    monkeypatch.setattr(fused, "_PROGRAMS", programs)
    (k, q, v), _ = given(n, d, r)
    v = torch.randn_like(k).requires_grad_()
    length = None if lengths is None else torch.tensor(lengths)
    real = None if lengths is None else torch.arange(n) < length[:, None]
    compare(fused.fused_ask(q, k, v, length), truth(q, k, v, real), (q, k, v))
    compare(kernel.ask_tokens(q, k, v, length), truth(q, k, v, real), (q, k, v))
    if lengths is not None:
        with pytest.raises(AssertionError):
            compare(fused.fused_ask(q, k, v), truth(q, k, v, real), (q, k, v))


def test_the_comparison_bites():
    inputs, _ = given(50, 16, 6)
    short = torch.arange(6) < torch.tensor([[6], [5]])
    with pytest.raises(AssertionError):
        compare(fused.fused_read(*inputs), truth(*inputs, short), inputs)


def test_the_inverse_has_the_gradient_of_its_iterations():
    a = torch.rand(2, 3, 4, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kernel.iterative_inverse(x, 4), a)
    near = torch.eye(4).double() + 0.1 * a.detach()
    found = kernel.iterative_inverse(near, 30)
    torch.testing.assert_close(found, torch.linalg.inv(near), rtol=0, atol=1e-10)


def test_the_inverse_stays_out_of_half_precision():
    a = (torch.eye(4) + 0.1 * torch.rand(3, 4, 4)).requires_grad_()
    plain = kernel.iterative_inverse(a, 20)
    (wanted,) = torch.autograd.grad(plain.square().sum(), a)
    with torch.autocast("cpu", torch.bfloat16):
        found = kernel.iterative_inverse(a, 20)
        assert not torch.equal(a @ a, a.double().matmul(a.double()).float())
        (grad,) = torch.autograd.grad(found.square().sum(), a)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [30, 32], ids=["uneven", "even"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_the_mixer_by_the_kernels_is_its_reference(monkeypatch, n, padded):
    mixer = Nystromformer(landmarks=8, kernel=5).build(Frame(dim=32, heads=2)).eval()
    x = torch.randn(2, n, 32)
    valid = torch.arange(n) < torch.tensor([[n], [5]]) if padded else None
    plain = mixer(x, valid=valid)
    monkeypatch.setattr(kernel, "can_fuse", lambda *tensors: True)
    torch.testing.assert_close(mixer(x, valid=valid), plain, rtol=1e-4, atol=1e-5)
    real = slice(None) if valid is None else valid
    expected = mixer.reference(x, valid=valid)
    torch.testing.assert_close(mixer(x, valid=valid)[real], expected[real], rtol=1e-3, atol=1e-4)

"""Reading landmarks by the kernels, interpreted on a CPU, and the inverse, against fp64."""

import pytest
import torch

import weft.kernels.nystrom.reference as kernel
import weft.kernels.nystrom.solve as solve
import weft.kernels.nystrom.triton as fused
from weft.kernels.adjacent import are_adjacent
from weft.mixers import Frame, Nystromformer, nystromformer

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


@pytest.mark.parametrize("used", [4, 3], ids=["every use", "no convolution"])
def test_means_add_up_the_gradients_of_all_uses(used):
    buffer = torch.randn(2, 12, 3 * 8, requires_grad=True)
    heads = [y.unflatten(-1, (2, 4)).transpose(1, 2) for y in buffer.split(8, -1)]
    wide = [y.double() for y in heads]
    means = [y.view(2, 2, 3, 4, 4).mean(3) for y in wide[:2]]
    expected = [*wide, wide[2], *means]
    found = fused.fused_means(*heads, 3)
    kept = [part for part in range(6) if part < used or part > 3]
    upstream = [torch.randn_like(found[part]) for part in kept]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other)
    one = torch.autograd.grad([found[part] for part in kept], buffer, upstream)
    wide = [y.double() for y in upstream]
    other = torch.autograd.grad([expected[part] for part in kept], buffer, wide)
    torch.testing.assert_close(one, other)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(one[0] * (torch.arange(24) > 0), other[0])


def test_gradients_of_means_lie_side_by_side():
    parts = torch.randn(2, 12, 3 * 8, requires_grad=True).split(8, -1)
    heads = [y.unflatten(-1, (2, 4)).transpose(1, 2) for y in parts]
    loss = sum(y.square().sum() for y in fused.fused_means(*heads, 3))
    grads = torch.autograd.grad(loss, heads)
    flat = tuple(grad.transpose(1, 2).flatten(2) for grad in grads)
    assert are_adjacent(flat)
    assert not are_adjacent(tuple(grad.clone() for grad in flat))


def compare_sizes(out, expected, inputs):
    """By norms: the inverse of a matrix that is nearly singular has large and small numbers."""
    upstream = torch.randn_like(out)
    found = (out, *torch.autograd.grad(out, inputs, upstream))
    wanted = (expected, *torch.autograd.grad(expected, inputs, upstream.double()))
    pairs = [(one.double(), other.double()) for one, other in zip(found, wanted, strict=True)]
    errors = [(one - other).norm().item() / (other.norm().item() + 1e-3) for one, other in pairs]
    assert max(errors) < 2e-5, errors


def solved(q, k, v, there, iterations):
    """Z v from the equation in fp64, Z by the published polynomial."""
    weights = (q.double() @ k.double().mT * q.shape[-1] ** -0.5).exp()
    weights = weights * (1.0 if there is None else there[:, None, None])
    a = weights / weights.sum(-1, keepdim=True)
    one = torch.eye(q.shape[2]).double()
    if there is not None:
        a = torch.where(there[:, None, :, None], a, one)
    z = a.mT / a.sum(-2).amax(-1)[..., None, None]
    for _ in range(iterations):
        az = a @ z
        z = (13 * z - 15 * z @ az + 7 * z @ az @ az - z @ az @ az @ az) / 4
    return z @ v.double()


def landmarks(d, r, counts=None):
    (_, k, v), there = given(1, d, r, counts)
    return (torch.randn_like(k).requires_grad_(), k, v), there


def by_the_kernel(q, k, v, there, iterations):
    return solve.fused_solve(q, k, v, fused.counts_of(there, q), iterations)


@pytest.mark.parametrize(("d", "r", "counts"), [(16, 1, None), (16, 6, (6, 2)), (32, 17, None)])
@pytest.mark.parametrize("run", [by_the_kernel, kernel.solve], ids=["kernel", "plain"])
def test_solving_is_that_of_the_equation(d, r, counts, run):
    inputs, there = landmarks(d, r, counts)
    compare_sizes(run(*inputs, there, 6), solved(*inputs, there, 6), inputs)


@pytest.mark.parametrize("iterations", [1, 2])
def test_solving_takes_some_iterations(iterations):
    inputs, there = landmarks(16, 6, (6, 2))
    expected = solved(*inputs, there, iterations)
    compare_sizes(by_the_kernel(*inputs, there, iterations), expected, inputs)
    for broken in ((there, iterations + 1), (None, iterations)):
        with pytest.raises(AssertionError):
            compare_sizes(
                by_the_kernel(*inputs, *broken), solved(*inputs, there, iterations), inputs
            )


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
    monkeypatch.setattr(kernel, "can_fuse", lambda *tensors, **rules: True)
    monkeypatch.setattr(kernel, "can_solve", lambda *tensors: True)
    monkeypatch.setattr(nystromformer, "with_means", fused.fused_means)
    torch.testing.assert_close(mixer(x, valid=valid), plain, rtol=1e-4, atol=1e-5)
    real = slice(None) if valid is None else valid
    expected = mixer.reference(x, valid=valid)
    torch.testing.assert_close(mixer(x, valid=valid)[real], expected[real], rtol=1e-3, atol=1e-4)

"""α-entmax attention against the entmax package, its gradients, and its limits."""

import pytest
import torch
from entmax import entmax15, entmax_bisect, sparsemax

from weft.errors import WeftError
from weft.kernels.dense.reference import dense_attention
from weft.kernels.entmax import entmax
from weft.mixers import Entmax, Frame


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 2, **(frame or {})})
    return Entmax(**settings).build(frame).double().eval()


def gaussian(*shape, scale=1.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def alphas(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("alpha", [1.01, 1.3, 1.5, 1.9, 2.0])
def test_weights_and_gradients_equal_the_package(alpha, scale):
    scores, wanted = gaussian(2, 2, 9, 50, scale=scale), gaussian(2, 2, 9, 50, seed=2)
    found = []
    for run in (
        lambda s, a: entmax(s, a),
        lambda s, a: entmax_bisect(s, a[:, None, None], -1, 70),
    ):
        s, a = scores.clone().requires_grad_(), alphas(alpha, alpha).requires_grad_()
        p = run(s, a)
        found.append((p.detach(), *torch.autograd.grad((p * wanted).sum(), (s, a))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_known_cases():
    scores = gaussian(2, 2, 9, 50, scale=2)
    for alpha, known in ((1.5, entmax15), (2.0, sparsemax)):
        ours = entmax(scores, alphas(alpha, alpha))
        torch.testing.assert_close(ours, known(scores, -1), rtol=0, atol=1e-12)
        assert (ours == 0).any()
    near = entmax(scores, alphas(1.001, 1.001))
    torch.testing.assert_close(near, scores.softmax(-1), rtol=0, atol=2e-3)


def test_the_gradient_is_that_of_differences():
    scores, alpha = gaussian(1, 2, 3, 6).requires_grad_(), alphas(1.3, 1.7).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, a: entmax(s, a), (scores, alpha))
    # A backward that left the entropy term out would be found.
    (whole,) = torch.autograd.grad(entmax(scores, alpha)[0, 0, 0, 0], alpha)
    assert whole[0].abs() > 1e-3


def test_masked_keys_get_nothing_and_empty_rows_are_zero():
    scores, mask = gaussian(1, 2, 3, 6), torch.tensor([[1, 1, 0, 0, 1, 0], [0] * 6, [1] * 6]).bool()
    p = entmax(scores, alphas(1.3, 1.7), mask)
    assert not p[:, :, ~mask].any()
    torch.testing.assert_close(p[:, :, [0, 2]].sum(-1), torch.ones(1, 2, 2).double())
    alone = entmax(scores[:, :, :1, [0, 1, 4]], alphas(1.3, 1.7))
    torch.testing.assert_close(p[:, :, :1, [0, 1, 4]], alone)


@pytest.mark.parametrize("causal", [False, True])
def test_alpha_near_one_is_full_attention(causal):
    mixer, x = build({"causal": causal}), gaussian(2, 30, 24)
    with torch.no_grad():
        mixer.sparsity.fill_(-40.0)
    q, k, v = mixer.heads(x)
    mask = torch.ones(30, 30, dtype=torch.bool)
    expected = mixer.project.out(dense_attention(q, k, v, mask=mask.tril() if causal else mask)[0])
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-3)
    with torch.no_grad():
        mixer.sparsity.fill_(3.0)
    assert not torch.allclose(mixer(x), expected, atol=1e-2)


def test_each_head_learns_its_own_alpha():
    mixer, x = build(start=1.25), gaussian(2, 30, 24)
    torch.testing.assert_close(mixer.alpha(), alphas(1.25, 1.25), rtol=0, atol=1e-6)
    mixer(x).square().sum().backward()
    assert mixer.sparsity.grad.shape == (2,)
    assert mixer.sparsity.grad.abs().min() > 0


def test_refuses_an_alpha_outside():
    for start in (1.0, 2.0, 0.5):
        with pytest.raises(WeftError, match="softmax"):
            Entmax(start=start)

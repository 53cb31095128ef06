"""The kernels of Sinkhorn balancing, interpreted on a CPU, against the equation in fp64."""

import pytest
import torch

import weft.kernels.sinkhorn.triton as kernel
from weft.mixers import Frame, Sinkhorn


def truth(scores, iterations, causal, allowed=None):
    """Row by row and column by column, from the equation."""
    u = scores.shape[-1]
    seen = torch.ones(u, u, dtype=torch.bool).tril(-1) if causal else torch.ones(u, u).bool()
    seen = seen if allowed is None else seen & allowed
    p = torch.where(seen, scores.double().exp(), 0.0)
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-30)
    reads = torch.ones(u, u).double().tril() if causal else torch.ones(u, u).double()
    for _ in range(iterations):
        sums = reads @ p
        p = p / torch.where(sums > 1e-30, sums, 1.0)
        rows = p.sum(-1, keepdim=True)
        p = p / torch.where(rows > 1e-30, rows, 1.0)
    return p


def compare(found, expected, scores):
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn_like(found)
    (mine,) = torch.autograd.grad(found, scores, upstream)
    (other,) = torch.autograd.grad(expected, scores, upstream.double())
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("u", [1, 2, 16, 37])
def test_values_and_gradients_are_those_of_the_equation(monkeypatch, causal, u):
    monkeypatch.setattr(kernel, "TILE", 512)  # several blocks of rows
    scores = (2 * torch.randn(2, u, u)).requires_grad_()
    found = kernel.fused_balance(scores, 3, causal=causal)
    compare(found, truth(scores, 3, causal), scores)
    with torch.no_grad():  # passes write over each other
        assert torch.equal(kernel.fused_balance(scores, 3, causal=causal), found)


@pytest.mark.parametrize(("causal", "scale"), [(False, 20.0), (False, 60.0), (True, 20.0)])
def test_columns_that_almost_vanish_have_finite_gradients(causal, scale):
    """Every row dislikes some columns: their sums are e^-60 and less, and divide the gradients.

    Bidirectional upstream gradients are as large as those of the logarithms of padded slots.
    """
    torch.manual_seed(0)
    scores = scale * (torch.randn(2, 37, 37) + torch.randn(1, 37))
    upstream = torch.randn(2, 37, 37) * (1 if causal else 1e9)
    own, exact = scores.clone().requires_grad_(), scores.double().requires_grad_()
    found = torch.autograd.grad(kernel.fused_balance(own, 8, causal=causal), own, upstream)[0]
    expected = torch.autograd.grad(truth(exact, 8, causal), exact, upstream.double())[0]
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max()


def test_entries_that_are_not_allowed_stay_empty():
    scores = torch.randn(2, 2, 9, 9).requires_grad_()
    there = torch.arange(9) < torch.tensor([[9], [5]])
    allowed = ((there[:, :, None] & there[:, None]) | torch.eye(9).bool())[:, None]
    found = kernel.fused_balance(scores, 2, allowed)
    assert not found.masked_select(~allowed).any()
    compare(found, truth(scores, 2, False, allowed), scores)


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_plain_paths_are_those_of_the_equation(causal):
    scores = torch.randn(2, 11, 11).double().requires_grad_()
    plain = kernel.causal_balance if causal else kernel.balance
    compare(plain(scores, 3), truth(scores, 3, causal), scores)


def test_the_comparison_bites():
    scores = torch.randn(1, 20, 20).requires_grad_()
    leaking = truth(scores, 3, causal=False).tril(-1)
    found = kernel.fused_balance(scores, 3, causal=True)
    with pytest.raises(AssertionError):
        compare(found, leaking, scores)
    with pytest.raises(AssertionError):
        compare(found, truth(scores, 2, causal=True), scores)


def test_extreme_scores_keep_gradients_finite():
    scores = torch.randn(1, 12, 12)
    scores[:, :, 3] = -200.0
    scores.requires_grad_()
    for causal in (False, True):
        found = kernel.fused_balance(scores, 8, causal=causal)
        (grad,) = torch.autograd.grad(found, scores, torch.randn_like(found))
        assert found.isfinite().all()
        assert grad.isfinite().all()


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_the_mixer_by_the_kernels_is_its_reference(monkeypatch, causal):
    mixer = Sinkhorn(block=4, iterations=3).build(Frame(dim=16, heads=2, causal=causal)).eval()
    x = torch.randn(2, 30, 16)
    called = []

    monkeypatch.setattr(kernel, "can_fuse", lambda scores: called.append(scores) or True)
    torch.testing.assert_close(mixer(x), mixer.reference(x), rtol=1e-4, atol=1e-5)
    assert called

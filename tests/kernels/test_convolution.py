"""The kernels of weighted neighbours, interpreted on a CPU, against loops over the taps in fp64."""

import pytest
import torch
import torch.nn.functional as F

import weft.kernels.block_sparse.band as band
import weft.kernels.convolution.triton as kernel

CASES = [(1, 8, 1, 0), (37, 16, 5, 2), (40, 20, 17, 16), (20, 16, 17, 3)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(kernel, "ROWS", 16)
    monkeypatch.setattr(kernel, "STEP", 16)
    monkeypatch.setattr(kernel, "GRADIENT_STEP", 16)


def truth(x, taps, before):
    """Tap by tap: shift, weigh, add."""
    n, count = x.shape[2], taps.shape[3]
    wide = F.pad(x.double(), (0, 0, before, count - 1 - before))
    return sum(taps.double()[..., s, None] * wide[:, :, s : s + n] for s in range(count))


def given(n, d, count, varies, b=2, h=2):
    torch.manual_seed(n + count)
    x = torch.randn(b, n, h, d).transpose(1, 2)
    taps = torch.randn(b, h, n, count) if varies else torch.randn(1, h, 1, count)
    return x.requires_grad_(), taps.requires_grad_()


def compare(out, expected, inputs):
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("varies", [False, True], ids=["shared", "varied"])
@pytest.mark.parametrize(("n", "d", "count", "before"), CASES)
def test_sums_and_gradients_by_loops(n, d, count, before, varies):
    x, taps = given(n, d, count, varies)
    compare(kernel.fused_tap_sum(x, taps, before), truth(x, taps, before), (x, taps))


@pytest.mark.parametrize("programs", [1, 10])
def test_shared_gradients_in_any_number_of_runs(monkeypatch, programs):
    monkeypatch.setattr(kernel, "_PROGRAMS", programs)
    x, taps = given(50, 16, 5, varies=False)
    compare(kernel.fused_tap_sum(x, taps, 2), truth(x, taps, 2), (x, taps))


@pytest.mark.parametrize("varies", [False, True], ids=["shared", "varied"])
def test_the_comparison_bites(varies):
    x, taps = given(40, 16, 5, varies)
    with pytest.raises(AssertionError):
        compare(kernel.fused_tap_sum(x, taps, 2), truth(x, taps, 3), (x, taps))
    with pytest.raises(AssertionError):
        compare(kernel.fused_tap_sum(x, taps, 2), truth(x, taps.flip(3), 2), (x, taps))


def test_band_takes_the_kernels_where_it_can(monkeypatch):
    x, taps = given(40, 16, 5, varies=True)
    plain = band.tap_sum(x, taps, 2)
    monkeypatch.setattr(band, "can_fuse", lambda *tensors, **rules: True)
    fused = band.tap_sum(x, taps, 2)
    assert not torch.equal(plain, torch.zeros_like(plain))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    assert type(fused.grad_fn).__name__ == "_TapSumBackward"

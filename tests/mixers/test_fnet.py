"""FNet against the Transformers library, and padding that must change nothing."""

import pytest
import torch
from transformers import FNetConfig
from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

from weft.errors import Unsupported, WeftError
from weft.layers.positions import Rope
from weft.mixers import FNet, Frame


def build(dim=16, norm="none"):
    return FNet(norm=norm).build(Frame(dim=dim, heads=1))


@pytest.mark.parametrize(("n", "dim"), [(1, 16), (2, 16), (7, 9), (64, 16), (100, 1)])
def test_equals_transformers(n, dim):
    x = torch.randn(3, n, dim, dtype=torch.float64)
    theirs = FNetBasicFourierTransform(FNetConfig(use_tpu_fourier_optimizations=False))(x)[0]
    torch.testing.assert_close(build(dim)(x), theirs, rtol=0, atol=1e-11)


def test_each_row_is_transformed_over_its_real_tokens():
    x = torch.randn(5, 12, 16, dtype=torch.float64)
    lengths = torch.tensor([12, 5, 0, 5, 1])
    right = torch.arange(12) < lengths[:, None]
    inside = torch.stack([row[torch.randperm(12)] for row in right])
    for valid in (right, right.flip(1), inside):
        y = build()(x, valid=valid)
        assert not y[~valid].any()
        for row in (0, 1, 3, 4):
            alone = torch.fft.fft2(x[row, valid[row]]).real
            torch.testing.assert_close(y[row, valid[row]], alone, rtol=0, atol=1e-11)


def test_gradients_pass_padding_by():
    x = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(6) < torch.tensor([6, 4])[:, None]
    (gradient,) = torch.autograd.grad(build(4)(x, valid=valid).square().sum(), x)
    assert gradient[1, :4].abs().min() > 0
    assert not gradient[1, 4:].any()


def test_ortho_divides_by_the_root_of_the_size():
    x = torch.randn(2, 10, 16, dtype=torch.float64)
    torch.testing.assert_close(build(norm="ortho")(x), build()(x) / 160**0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_stays_finite(dtype):
    x = torch.randn(2, 100, 24).to(dtype)
    truth = torch.fft.fft2(x.double()).real
    y = build(24)(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), truth, rtol=torch.finfo(dtype).eps, atol=1e-3)
    large = build(256)(torch.full((1, 512, 256), 8.0, dtype=dtype))
    assert large.isfinite().all()
    expected = min(8.0 * 512 * 256, torch.finfo(dtype).max)
    assert float(large[0, 0, 0]) == pytest.approx(expected, rel=0.01)


def test_has_nothing_to_learn():
    assert not build().state_dict()


def test_refusals():
    mixer, x = build(), torch.randn(1, 4, 16)
    with pytest.raises(Unsupported, match=r"fnet cannot be causal: .*reads the whole"):
        FNet().build(Frame(dim=16, causal=True))
    with pytest.raises(Unsupported, match="fnet cannot read a context"):
        mixer(x, context=x)
    with pytest.raises(Unsupported, match="no queries and keys"):
        FNet().build(Frame(dim=16, positions=Rope()))
    with pytest.raises(Unsupported, match="does not stream"):
        mixer.start(1)
    with pytest.raises(WeftError, match="norm is one of"):
        FNet(norm="forward")

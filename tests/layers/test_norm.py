import pytest
import torch

from weft.errors import WeftError
from weft.layers.norm import Norm
from weft.mixers import Frame
from weft.models import Stack


def stirred(norm: Norm, dim: int):
    module = norm.build(dim).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def test_layer_norm_is_its_equation():
    module, x = stirred(Norm(eps=1e-3), 7), torch.randn(2, 3, 7, dtype=torch.float64)
    centred = x - x.sum(-1, keepdim=True) / 7
    expected = centred / (centred.pow(2).sum(-1, keepdim=True) / 7 + 1e-3).sqrt()
    torch.testing.assert_close(module(x), expected * module.weight + module.bias)


def test_rms_norm_is_its_equation():
    module, x = stirred(Norm(kind="rms", eps=1e-3), 7), torch.randn(2, 3, 7, dtype=torch.float64)
    expected = x / (x.pow(2).sum(-1, keepdim=True) / 7 + 1e-3).sqrt() * module.weight
    torch.testing.assert_close(module(x), expected)
    assert [name for name, _ in module.named_parameters()] == ["weight"]


def test_norms_without_a_shift():
    module = Norm(shift=False).build(7)
    assert [name for name, _ in module.named_parameters()] == ["weight"]


def test_the_first_sublayer_may_have_no_norm():
    frame = Frame(dim=8, heads=2)
    stack = Stack(frame=frame, order="sfsf", norm=Norm(enters=True, first=False)).build()
    norms = [type(each.norm) for each in stack.sublayers]
    assert norms == [torch.nn.Identity, *[torch.nn.LayerNorm] * 3]
    with pytest.raises(WeftError, match="share their norms"):
        Stack(frame=frame, order="sfsf", norm=Norm(first=False), shared=1)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_squares_do_not_overflow_in_half_precision(kind, dtype):
    x = torch.tensor([[3e4, -3e4, 1e4, 0.0]], dtype=dtype)  # 9e8 is beyond float16
    y = Norm(kind=kind).build(4).to(dtype)(x)
    expected = Norm(kind=kind).build(4).double()(x.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "batch"}, "kind is one of 'layer', 'rms', 'none'; got 'batch'"),
        ({"place": "middle"}, "place is one of 'pre', 'post', 'both'; got 'middle'"),
        ({"eps": 0.0}, "positive; got 0.0"),
        ({"first": False, "place": "post"}, "got place=.post."),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        Norm(**settings)

"""Overlapping windows become slots: against windows that are cut out one by one."""

import pytest
import torch
import torch.nn.functional as F

from weft.layers.overlap import OverlapCompression

SIZES = [(8, 4, 37), (4, 4, 20), (9, 3, 30), (8, 4, 9)]  # span, stride, tokens


def cut(module, x, ends=0):
    """The equation, window by window; `ends` shifts the windows: a twin that is wrong."""
    windows = x.roll(-ends, 2).unfold(2, module.span, module.stride).mT  # (b, g, slots, span, d)
    if module.kind == "mean":
        return windows.mean(3)
    return module.second(F.gelu(module.first((windows + module.places).flatten(3))))


def heads(tokens):
    """(2, 3, tokens, 6), as a projection leaves it: tokens first in memory."""
    return torch.randn(2, tokens, 3, 6, dtype=torch.float64).transpose(1, 2).requires_grad_()


@pytest.mark.parametrize("kind", ["mlp", "mean"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_slots_and_gradients_equal_the_equation(kind, sizes):
    span, stride, tokens = sizes
    module = OverlapCompression(kind, span, stride, 6).double()
    x = heads(tokens)
    given = [x, *module.parameters()]
    found, wanted = module(x), cut(module, x)
    assert found.shape[2] == module.slots(tokens)
    torch.testing.assert_close(found, wanted)
    upstream = torch.randn_like(found)
    again = torch.autograd.grad(found, given, upstream)
    for one, other in zip(again, torch.autograd.grad(wanted, given, upstream), strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.allclose(found, cut(module, x, ends=1)), "a window begins at its stride"


def test_too_few_tokens_make_no_slot():
    module = OverlapCompression("mlp", 8, 4, 6).double()
    assert module(heads(7)).shape == (2, 3, 0, 6)


def test_products_may_be_narrower_than_the_tokens():
    module = OverlapCompression("mlp", 8, 4, 6)
    x = heads(20).detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), cut(module, x), rtol=0, atol=3e-2)
    found.float().sum().backward()
    assert x.grad.dtype == module.first.weight.grad.dtype == torch.float32

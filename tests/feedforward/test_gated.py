"""The gate against torch.nn.functional.glu."""

import torch
import torch.nn.functional as F

from weft.feedforward import FEEDFORWARDS, Gate


def test_equals_torch_glu():
    torch.manual_seed(0)
    module, x = Gate().build(8).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    both = torch.cat((module.to_out(x), module.to_gate(x)), dim=-1)
    torch.testing.assert_close(module(x), F.glu(both), rtol=1e-12, atol=1e-12)
    swapped = F.glu(both.roll(8, dims=-1))
    assert (module(x) - swapped).abs().max() > 1e-2


def test_has_two_matrices_and_a_name():
    assert sum(p.numel() for p in Gate().build(8, bias=False).parameters()) == 2 * 8 * 8
    assert FEEDFORWARDS.parse("gate") == Gate()

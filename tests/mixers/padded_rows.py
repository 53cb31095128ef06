"""A float32 mixer on a padded row, against its reference in float64."""

import copy

import torch


def assert_like_reference(mixer):
    """Values, and the gradients of all parameters."""
    x = torch.randn(1, 20, 32, generator=torch.Generator().manual_seed(0))
    valid = torch.arange(20)[None] < 17
    exact = copy.deepcopy(mixer).double()
    ours, expected = mixer(x, valid=valid), exact.reference(x.double(), valid=valid)
    expected = expected * valid[..., None]
    torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-5)
    ours.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(mixer.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-4)

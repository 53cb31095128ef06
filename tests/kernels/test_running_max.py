"""The running maximum in blocks against a loop."""

import pytest
import torch

import weft.kernels.running_max as running


@pytest.mark.parametrize("n", [1, 3, 4, 5, 16, 33, 70])
def test_equals_the_largest_so_far(monkeypatch, n):
    monkeypatch.setattr(running, "BLOCK", 4)
    x = torch.randn(2, 3, n)
    found = running.running_max(x)
    for i in range(n):
        assert torch.equal(found[..., i], x[..., : i + 1].amax(-1))
    later = torch.cat((x[..., :-1], x.amax() + torch.ones(2, 3, 1)), dim=-1)
    assert torch.equal(running.running_max(later)[..., :-1], found[..., :-1])

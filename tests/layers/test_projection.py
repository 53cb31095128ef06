"""Projections: grouped heads, and several maps as one product (what a GPU runs)."""

import pytest
import torch
from torch import nn

from weft.errors import WeftError
from weft.kernels.adjacent import are_adjacent
from weft.layers.projections import dense
from weft.layers.projections.dense import Projections, join_heads, side_by_side, split_heads


def test_heads_split_and_join_back():
    x = torch.randn(2, 5, 12)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 4)
    assert torch.equal(heads[1, 2, 3], x[1, 3, 8:])
    assert torch.equal(join_heads(heads), x)


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_equals_three(bias):
    """Values and gradients, with the function that a GPU uses called directly."""
    maps = [nn.Linear(6, width, bias=bias).double() for width in (8, 4, 4)]
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.cat([each.weight for each in maps])
    stacked = torch.cat([each.bias for each in maps]) if bias else None
    ours = dense._SideBySide.apply(x, weight, stacked, [8, 4, 4])
    theirs = [each(x) for each in maps]
    pulls = [torch.randn_like(y) for y in theirs]
    wanted = torch.autograd.grad(theirs, [x, *(p for m in maps for p in m.parameters())], pulls)
    found = torch.autograd.grad(ours, [x, *(p for m in maps for p in m.parameters())], pulls)
    for mine, other in zip((*ours, *found), (*theirs, *wanted), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_gradients_that_lie_side_by_side_are_used_as_they_are(monkeypatch):
    x = torch.randn(2, 5, 6, requires_grad=True)
    weight = torch.randn(12, 6, requires_grad=True)
    made = dense._SideBySide.apply(x, weight, None, [4, 8])
    joint = torch.randn(2, 5, 12)
    pulls = joint.split([4, 8], dim=-1)
    assert are_adjacent(pulls)
    monkeypatch.setattr(torch, "cat", lambda *args, **kwargs: pytest.fail("copied"))
    dx, dweight = torch.autograd.grad(made, (x, weight), pulls)
    torch.testing.assert_close(dx, joint @ weight)
    torch.testing.assert_close(dweight, joint.flatten(0, 1).T @ x.flatten(0, 1))


def test_few_tokens_and_a_cpu_take_the_maps_one_by_one():
    maps = (nn.Linear(6, 4), nn.Linear(6, 2))
    x = torch.randn(1, 3, 6)
    for ours, each in zip(side_by_side(x, maps), maps, strict=True):
        assert torch.equal(ours, each(x))


def test_a_scale_that_is_not_above_zero_is_refused():
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(WeftError, match="query_scale multiplies queries, above 0; got"):
            dense.DenseProjection(query_scale=scale)


def test_grouped_keys_have_their_own_width():
    project = Projections(dim=12, heads=4, kv_heads=2, head_dim=3, bias=True)
    q, k, v = project.qkv(torch.randn(2, 5, 12))
    assert (q.shape, k.shape, v.shape) == ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3))
    assert project.out(q).shape == (2, 5, 12)


def test_matrices_are_folded_only_where_they_are_plain_and_unwatched():
    """A hook, or a module that someone put in the place of a matrix, must be asked as before."""
    made = Projections(8, 2, 2, 4, bias=True)
    assert made.foldable
    handle = made.to_v.register_forward_hook(lambda *_: None)
    assert not made.foldable
    handle.remove()
    assert made.foldable
    made.to_k = torch.nn.Sequential(made.to_k)
    assert not made.foldable

"""Slices of one buffer are recognised, and only they are."""

import torch

from weft.kernels.joint import empty_like_heads, joined, lie_side_by_side


def test_slices_come_back_as_their_buffer():
    whole = torch.randn(2, 5, 12)
    parts = whole.split([6, 2, 4], dim=-1)
    assert lie_side_by_side(parts)
    back = joined(parts)
    assert back.data_ptr() == whole.data_ptr()
    assert torch.equal(back, whole)


def test_anything_else_is_copied_together():
    whole = torch.randn(2, 5, 12)
    a, b, c = whole.split([6, 2, 4], dim=-1)
    for parts in ((b, a, c), (a, b), (a, b.clone(), c), (a.clone(), b, c)):
        assert not lie_side_by_side(parts)
        assert torch.equal(joined(parts), torch.cat(parts, dim=-1))


def test_gradients_stand_as_their_tensors_do():
    whole = torch.randn(2, 5, 12)
    heads = tuple(x.unflatten(-1, (-1, 2)).transpose(1, 2) for x in whole.split([6, 2, 4], dim=-1))
    made = empty_like_heads(heads)
    assert [x.shape for x in made] == [x.shape for x in heads]
    flat = tuple(x.transpose(1, 2).flatten(2) for x in made)
    assert lie_side_by_side(flat)
    apart = empty_like_heads(tuple(x.clone() for x in heads))
    assert [x.shape for x in apart] == [x.shape for x in heads]
    assert not lie_side_by_side(tuple(x.transpose(1, 2).flatten(2) for x in apart))

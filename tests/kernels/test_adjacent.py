"""Slices of one buffer are recognised, and only they are."""

import torch

from weft.kernels.adjacent import are_adjacent, empty_like_heads, joined


def test_slices_come_back_as_their_buffer():
    whole = torch.randn(2, 5, 12)
    parts = whole.split([6, 2, 4], dim=-1)
    assert are_adjacent(parts)
    back = joined(parts)
    assert back.data_ptr() == whole.data_ptr()
    assert torch.equal(back, whole)


def test_anything_else_is_copied_together():
    whole = torch.randn(2, 5, 12)
    a, b, c = whole.split([6, 2, 4], dim=-1)
    for parts in ((b, a, c), (a, b), (a, b.clone(), c), (a.clone(), b, c)):
        assert not are_adjacent(parts)
        assert torch.equal(joined(parts), torch.cat(parts, dim=-1))


def test_gradients_stand_as_their_tensors_do():
    whole = torch.randn(2, 5, 12)
    heads = tuple(x.unflatten(-1, (-1, 2)).transpose(1, 2) for x in whole.split([6, 2, 4], dim=-1))
    made = empty_like_heads(heads)
    assert [x.shape for x in made] == [x.shape for x in heads]
    flat = tuple(x.transpose(1, 2).flatten(2) for x in made)
    assert are_adjacent(flat)
    apart = empty_like_heads(tuple(x.clone() for x in heads))
    assert [x.shape for x in apart] == [x.shape for x in heads]
    assert not are_adjacent(tuple(x.transpose(1, 2).flatten(2) for x in apart))

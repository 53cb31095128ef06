"""Tensors adjacent in one buffer: a wide product's slices, and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Parts (b, n, width) as one (b, n, widths): the buffer they are slices of, or a copy."""
    if not are_adjacent(parts):
        return torch.cat(parts, dim=-1)
    b, n = parts[0].shape[:2]
    total = sum(part.shape[-1] for part in parts)
    return parts[0].as_strided((b, n, total), (n * total, total, 1))


def are_adjacent(parts: tuple[Tensor, ...]) -> bool:
    """Whether parts (b, n, width) are the slices, in order, of one contiguous (b, n, widths)."""
    n, total = parts[0].shape[1], sum(part.shape[-1] for part in parts)
    expected = parts[0].data_ptr()
    for part in parts:
        if part.stride() != (n * total, total, 1) or part.data_ptr() != expected:
            return False
        expected += part.shape[-1] * part.element_size()
    return True


def empty_like_heads(heads: tuple[Tensor, ...]) -> list[Tensor]:
    """Empty tensors like these (b, h, n, d); adjacent in one buffer where they are."""
    flat = tuple(x.transpose(1, 2).flatten(2) for x in heads if x.stride(1) == x.shape[3])
    alike = len(flat) == len(heads) and all(x.shape[1] == flat[0].shape[1] for x in flat)
    if not alike or not are_adjacent(flat):
        return [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in heads]
    widths = [x.shape[-1] for x in flat]
    buffer = heads[0].new_empty(*flat[0].shape[:2], sum(widths))
    parts = buffer.split(widths, dim=-1)
    return [x.unflatten(-1, (-1, heads[0].shape[3])).transpose(1, 2) for x in parts]

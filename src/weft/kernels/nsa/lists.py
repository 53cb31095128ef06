"""All pairs of a query and a block that it chose, by block: what the kernels of them walk."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.kernels.device_cache import device_cache
from weft.kernels.launch import on_grid

PROGRAMS = 2048  # segments that all lists together are cut into, at least, if they are long
LEAST = 8  # products of a segment, at least
SIZES = (2048, 1024)  # pairs and lists that a program takes at a time


class SelectionLists(NamedTuple):
    """All pairs by block, cut into segments."""

    order: Tensor  # (pairs,) pairs sorted by block, those without a block last
    starts: Tensor  # (lists + 1,) where the list of a block begins
    cuts: Tensor  # (lists + 1,) the first segment of a block
    owners: Tensor  # (segments,) whose segment it is; `lists`: of none
    length: int  # pairs of a segment, at most


def lists_of(chosen: Tensor, count: int, step: int) -> SelectionLists:
    """The lists of chosen (b, g, n, s), blocks below `count`; `step`: pairs of a product.

    Nothing waits for the device.
    """
    from weft.kernels.nsa.list_kernels import bucket_kernel, cut_kernel

    b, g, n, s = chosen.shape
    lists, pairs, (taken, lanes) = b * g * count, chosen.numel(), SIZES
    small = torch.int16 if lists < 2**15 else torch.int32  # a sort passes over fewer bits
    bucket = torch.empty(pairs, dtype=small, device=chosen.device)
    on_grid(bucket_kernel, (b * g * -(-n * s // taken),))(
        chosen, bucket, n * s, count, lists, SIZE=taken
    )
    bucket, order = bucket.sort(stable=True)
    starts = torch.searchsorted(bucket, _edges(lists, small, chosen.device), out_int32=True)
    # Most lists are one segment, unless that makes too few programs.
    length = max(LEAST * step, min(2 * pairs // lists, pairs // PROGRAMS) // step * step)
    cuts = torch.empty_like(starts)
    owners = starts.new_empty(min(pairs, pairs // length + lists))
    on_grid(cut_kernel, (1,))(starts, cuts, owners, lists, len(owners), length, SIZE=lanes)
    return SelectionLists(order, starts, cuts, owners, length)


@device_cache(16)
def _edges(lists: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(lists + 1, device=device, dtype=dtype)

# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels that list the pairs of queries and blocks by block; `selected_lists.py` says how.

A line is one key head of one row, and has a list for each of its `count` blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bucket_kernel(chosen_ptr, bucket_ptr, each, count, lists, SIZE: tl.constexpr):
    """The list of each of the `each` pairs of a line; `lists`: of none."""
    tiles = tl.cdiv(each, SIZE)
    line, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    inside = tile * SIZE + tl.arange(0, SIZE)
    at = line.to(tl.int64) * each + inside
    chosen = tl.load(chosen_ptr + at, mask=inside < each, other=0)
    bucket = tl.where(chosen < count, chosen + line * count, lists)
    tl.store(bucket_ptr + at, bucket.to(bucket_ptr.dtype.element_ty), mask=inside < each)


@triton.jit
def cut_kernel(starts, cuts, owners, lists, segments, length, SIZE: tl.constexpr):
    """The first segment of each list (lists + 1,) and whose each segment is (segments,).

    One program does it all: the lists are few.
    """
    lane = tl.arange(0, SIZE)
    used = tl.load(starts) * 0
    tl.store(cuts, used)
    for at in range(0, lists, SIZE):
        real = at + lane < lists
        first = tl.load(starts + at + lane, mask=real, other=0)
        last = tl.load(starts + at + lane + 1, mask=real, other=0)
        pieces = (last - first + length - 1) // length
        upto = used + tl.cumsum(pieces, 0)
        tl.store(cuts + at + lane + 1, upto, mask=real)
        for piece in range(0, tl.max(pieces, 0)):
            tl.store(owners + upto - pieces + piece, at + lane, mask=piece < pieces)
        used += tl.sum(pieces, 0)
    for at in range(used, segments, SIZE):
        tl.store(owners + at + lane, lane * 0 + lists, mask=at + lane < segments)

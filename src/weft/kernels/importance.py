"""The blocks that native sparse attention reads, from its compressed branch, by Triton kernels.

Nothing of the size n × slots is written: the first kernel adds up the weights of a block where
their scores are, the second keeps the best few of n / block numbers for each query. Queries go in
groups, so that these take at most `AT_ONCE` numbers. The choice has no gradient.
`mixers/nsa.py` says the same in plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.kernels.block_sparse import LOG2E, WIDTHS

AT_ONCE = 2**28
# (queries, blocks, warps, stages) of a program that weighs blocks.
WEIGH = (64, 64, 4, 3)
CHOOSE = (64, 2, 8)  # queries for which a program chooses, warps, weights loaded at a time
KEPT = 16  # blocks that are chosen in one pass over the weights, at most
LARGEST = 2**14  # blocks of a sequence, at most


def can_choose(q: Tensor, k: Tensor, blocks: int) -> bool:
    """Whether the kernels take these: half precision on a GPU, widths that are powers of two."""
    half = q.dtype == k.dtype and q.dtype in (torch.float16, torch.bfloat16)
    return q.is_cuda and half and q.shape[-1] in WIDTHS and blocks <= LARGEST


@torch.no_grad()
def choose_blocks(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    *,
    block: int,
    each: int,
    shares: int,
    selected: int,
    near: int,
) -> Tensor:
    """q (b, h, n, d), slots k (b, g, s, d), lse (b, h, n) -> blocks (b, g, n, selected) in int32.

    Query i stands in block ⌊i / block⌋, a block holds `each` strips, a slot covers `shares` of
    them, and `lse` is that of attention to the slots. A number of ⌈n / block⌉ stands for no block.
    """
    from weft.kernels.importance_triton import choose_kernel, importance_kernel

    (b, h, n, d), (g, slots) = q.shape, k.shape[1:3]
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    count, lines = -(-n // block), b * g
    queries, blocks, warps, stages = WEIGH
    rows, choosers, ahead = CHOOSE
    chosen = q.new_empty(b, g, n, selected, dtype=torch.int32)
    taken = max(1, AT_ONCE // (lines * count * queries)) * queries
    weight = q.new_empty(lines * min(taken, n) * count, dtype=torch.float32)
    strides = [x.stride(axis) for x in (q, k, lse) for axis in (0, 1, 2)]
    for first in range(0, n, taken):
        last = min(n, first + taken)
        grid = (lines * -(-(last - first) // queries), -(-count // blocks))
        sizes = (g, h // g, first, last, slots, count, near, each, shares, d**-0.5 * LOG2E)
        importance_kernel[grid](
            q, k, lse, weight, *strides, *sizes, QUERIES=queries, BLOCKS=blocks, WIDTH=d,
            BLOCK=block, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        grid = (lines * -(-(last - first) // rows),)
        choose_kernel[grid](
            weight, chosen, n, first, last, count, near, QUERIES=rows, BLOCK=block,
            BITS=1 << (count - 1).bit_length(), SELECTED=selected,
            KEPT=max(1, min(KEPT, selected - 1 - near)), AHEAD=ahead, num_warps=choosers,
        )  # fmt: skip
    return chosen

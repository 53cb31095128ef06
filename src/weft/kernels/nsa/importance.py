"""The blocks that native sparse attention reads, from its compressed branch, by Triton kernels.

Nothing of the size n × slots is written: the first kernel adds up the weights of a block where
their scores are, the second keeps the best few of n / block numbers for each query. Queries go in
groups, so that these take at most `AT_ONCE` numbers. The choice has no gradient.
`mixers/nsa.py` says the same in plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.kernels.block_sparse.launch import LOG2E
from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.launch import on_grid, strides, unit_stride
from weft.kernels.planner.fast import HALF, FastKernel, Rule

AT_ONCE = 2**28
# (queries, blocks, warps, stages) of a program that weighs blocks.
WEIGH = (64, 64, 4, 3)
CHOOSE = (64, 2, 8)  # queries for which a program chooses, warps, weights loaded at a time
KEPT = 16  # blocks that are chosen in one pass over the weights, at most
LARGEST = 2**14  # blocks of a sequence, at most


FUSED = FastKernel("choice of blocks", dtypes=HALF, graph=True)


def can_choose(q: Tensor, k: Tensor, blocks: int, start: int = 0) -> bool:
    """Whether the kernels take queries and slots (b, _, _, d) of this many blocks."""
    width = q.shape[-1]
    rules = (
        Rule(start == 0, "starts with the first token", start),
        Rule(k.shape[2] > 0, "takes one slot or more"),
        Rule(width in WIDTHS, TAKES_WIDTHS, width),
        Rule(blocks <= LARGEST, "takes up to 16384 blocks", blocks),
    )
    return FUSED.takes(q, k, rules=rules)


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

    Query i is in block ⌊i / block⌋, a block holds `each` strips, a slot covers `shares` of
    them, and `lse` is that of attention to the slots. The number ⌈n / block⌉ means no block.
    """
    from weft.kernels.nsa.importance_kernels import choose_kernel, importance_kernel

    (b, h, n, d), (g, slots) = q.shape, k.shape[1:3]
    q, k = (unit_stride(x) for x in (q, k))
    count, lines = -(-n // block), b * g
    queries, blocks, warps, stages = WEIGH
    rows, choosers, ahead = CHOOSE
    chosen = q.new_empty(b, g, n, selected, dtype=torch.int32)
    taken = max(1, AT_ONCE // (lines * count * queries)) * queries
    weight = q.new_empty(lines * min(taken, n) * count, dtype=torch.float32)
    for first in range(0, n, taken):
        last = min(n, first + taken)
        grid = (lines * -(-(last - first) // queries), -(-count // blocks))
        sizes = (g, h // g, first, last, slots, count, near, each, shares, d**-0.5 * LOG2E)
        on_grid(importance_kernel, grid)(
            q, k, lse, weight, *strides(q, k, lse), *sizes, QUERIES=queries, BLOCKS=blocks, WIDTH=d,
            BLOCK=block, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        grid = (lines * -(-(last - first) // rows),)
        on_grid(choose_kernel, grid)(
            weight, chosen, n, first, last, count, near, QUERIES=rows, BLOCK=block,
            BITS=1 << (count - 1).bit_length(), SELECTED=selected,
            KEPT=max(1, min(KEPT, selected - 1 - near)), AHEAD=ahead, num_warps=choosers,
        )  # fmt: skip
    return chosen

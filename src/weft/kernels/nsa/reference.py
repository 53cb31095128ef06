"""Causal attention to chosen blocks of keys, each query to its own few.

Every pair of a query and a block that it chose is an item; items are sorted by block and cut into
chunks, so that a chunk is a product of up to `CHUNK` queries with one block. The parts of a query
are joined through their log-sum-exp. Time and memory grow with the pairs, not with n². On a GPU in
half precision `triton.py` does the same by kernels of our own.

Letters: s chosen blocks of a query, w tokens of a block, p = h / g query heads per key head,
u chunks, a items of a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.dense.reference import dense_attention
from weft.kernels.lsh.reformer import cut_buckets, take_rows
from weft.kernels.nsa.triton import can_fuse, fused_selected
from weft.kernels.slots import into_blocks

CHUNK = 64


def attend_selected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    *,
    block: int,
    start: int = 0,
    dropout: float = 0.0,
) -> Tensor:
    """q (b, h, n, d) from index `start`, k and v (b, g, m, d), chosen (b, g, n, s) -> (b, h, n, d).

    `chosen` are distinct block numbers; one that is not below ⌈m / block⌉ means no block. A
    query reads keys up to itself, and at least one of them.
    """
    if can_fuse(q, k, v, block):
        return fused_selected(q, k, v, chosen, block=block, start=start, dropout=dropout)
    chosen, (n, d), (g, m) = chosen.long(), q.shape[2:], k.shape[1:3]
    s, count, heads = chosen.shape[3], -(-m // block), q.shape[1] // g
    item, slot = cut_buckets(chosen.flatten(2), count + 1, min(CHUNK, n))
    none = item == n * s
    queries = item.clamp(max=n * s - 1) // s  # (b, g, u, a)
    owner = F.pad(chosen.flatten(2), (0, 1), value=count).gather(-1, item[..., 0])  # (b, g, u)
    place = owner[..., None] * block + torch.arange(block, device=q.device)  # (b, g, u, w)
    mask = (place[..., None, :] <= start + queries[..., None]) & ~none[..., None]
    mask = mask & (place < m)[..., None, :]  # (b, g, u, a, w)
    mask = mask.repeat_interleave(heads, 3).flatten(1, 2)  # (b, g·u, a·p, w)
    rows = q.unflatten(1, (g, heads)).transpose(2, 3).flatten(3)  # (b, g, n, p·d)
    rows = take_rows(rows, queries).unflatten(-1, (heads, d)).flatten(3, 4)  # (b, g, u, a·p, d)
    owner = owner.clamp(max=count - 1)
    k, v = (take_rows(into_blocks(x, block).flatten(3), owner) for x in (k, v))
    k, v = k.unflatten(-1, (block, d)), v.unflatten(-1, (block, d))  # (b, g, u, w, d)
    o, lse = dense_attention(
        rows.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), mask=mask, dropout=dropout
    )  # (b, g·u, a·p, d), (b, g·u, a·p)
    o = o.reshape(len(q), g, -1, heads * d)  # (b, g, u·a, p·d)
    o = take_rows(o, slot).unflatten(2, (n, s)).unflatten(-1, (heads, d))  # (b, g, n, s, p, d)
    lse = take_rows(lse.reshape(len(q), g, -1, heads), slot).unflatten(2, (n, s))
    share = lse.softmax(3)[..., None].to(o.dtype)  # (b, g, n, s, p, 1)
    return (o * share).sum(3).transpose(2, 3).flatten(1, 2)  # (b, h, n, d)

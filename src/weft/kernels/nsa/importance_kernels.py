# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels that choose blocks: how much weight the slots of a block hold, and the best few.

A slot is a key made of some strips of tokens, a block holds `each` strips, a slot covers `shares`.
With p_t = exp(q·k_t / √d − lse) block u weighs

    Σ_o c_o p_{u·each + o},   c_o = min(shares, shares + o, each − o),   −shares < o < each

summed over the query heads of a key head. For each o the slots of many blocks are one product, so a
weight is added where its score was computed and no probability is ever written.

Blocks up to `near` before a query's own are always read, and so is the first one: only those
between are weighed, and all slots of these have ended. To choose, the number of a block stands in
the lowest bits of its weight, so that one maximum says both: of weights that differ in these bits
alone, less than 2⁻¹² of them up to 65,536 tokens in blocks of 64, the first is heavier. A thread
walks the blocks of one query and keeps the best in order: each new one sinks to its place.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def importance_kernel(
    q_ptr, k_ptr, lse_ptr, out_ptr, q_b, q_h, q_n, k_b, k_h, k_n, s_b, s_h, s_n,
    key_heads, group, first, last, slots, count, near, each, shares, scale,
    QUERIES: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights of BLOCKS blocks for QUERIES queries of first..last: (lines, count, last − first)."""
    tiles = tl.cdiv(last - first, QUERIES)
    line, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, g = (line // key_heads).to(tl.int64), (line % key_heads).to(tl.int64)
    begin = first + tile * QUERIES
    row = tl.arange(0, QUERIES)
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    d = tl.arange(0, WIDTH)
    real = begin + row < last
    if tl.program_id(1) * BLOCKS <= (begin + QUERIES - 1) // BLOCK - near:
        total = tl.zeros([QUERIES, BLOCKS], tl.float32)
        for a in range(group):
            h = g * group + a
            q_at = q_ptr + (b * q_b + h * q_h + begin.to(tl.int64) * q_n)
            q = tl.load(q_at + row[:, None] * q_n + d[None, :], mask=real[:, None], other=0)
            s_at = lse_ptr + (b * s_b + h * s_h + begin.to(tl.int64) * s_n)
            base = tl.load(s_at + row * s_n, mask=real, other=0)
            base = base * 1.4426950408889634
            # The bounds are not constants: unrolled, the loop would take so many registers that
            # one program fills a processor.
            for offset in range(1 - shares, each):
                # Slots of blocks that are weighed are there.
                t = tl.minimum(tl.maximum(blocks * each + offset, 0), slots - 1)
                k = tl.load(k_ptr + b * k_b + g * k_h + t[:, None].to(tl.int64) * k_n + d[None, :])
                share = tl.minimum(shares + tl.minimum(offset, 0), each - offset)
                p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - base[:, None])
                total += p * share
        weighed = tl.where(real, (begin + row) // BLOCK - near, -1)
        place = line.to(tl.int64) * count + blocks[None, :]
        out_at = out_ptr + place * (last - first) + tile * QUERIES + row[:, None]
        tl.store(out_at, total, mask=blocks[None, :] <= weighed[:, None])


@triton.jit
def choose_kernel(
    weight_ptr, chosen_ptr, n, first, last, count, near,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, SELECTED: tl.constexpr,
    KEPT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """The first block, the near ones and the heaviest between: (lines, n, SELECTED), or `count`.

    KEPT are found at a time; AHEAD weights of a query are loaded before they are looked at.
    """
    tiles = tl.cdiv(last - first, QUERIES)
    line = (tl.program_id(0) // tiles).to(tl.int64)
    begin = first + (tl.program_id(0) % tiles) * QUERIES
    rows = begin + tl.arange(0, QUERIES)
    real = rows < last
    own = rows // BLOCK
    at = chosen_ptr + (line * n + rows.to(tl.int64)) * SELECTED
    tl.store(at, rows * 0, mask=real)
    for c in range(0, near):
        close = own - c
        tl.store(at + 1 + c, tl.where(close > 0, close, count), mask=real)
    weighed = tl.where(real, own - near, -1)
    end = (begin + QUERIES - 1) // BLOCK - near + 1
    bound = rows * 0 + 2147483647
    for c in range(1 + near, SELECTED, KEPT):
        best = (rows * 0 - 1,) * KEPT
        for u in range(1, end, AHEAD):
            weights = ()
            for e in tl.static_range(AHEAD):
                one = weight_ptr + (line * count + u + e) * (last - first) + (rows - first)
                one = tl.load(one, mask=u + e <= weighed, other=0.0)
                weights = weights + (one,)  # noqa: RUF005  # Triton knows no starred tuples
            for e in tl.static_range(AHEAD):
                # Weights are not negative, so their bits are in order like themselves.
                key = weights[e].to(tl.int32, bitcast=True) & -BITS | (BITS - 1 - u - e)
                key = tl.where((u + e <= weighed) & (key < bound), key, -1)
                best = _sunk(best, key, KEPT)
        for e in tl.static_range(KEPT):
            where = tl.where(best[e] >= 0, BITS - 1 - (best[e] & (BITS - 1)), count)
            tl.store(at + c + e, where, mask=real & (c + e < SELECTED))
        bound = best[KEPT - 1]


@triton.jit
def _sunk(best, key, KEPT: tl.constexpr):
    """The highest KEPT of `best`, highest first, and `key`."""
    new = (tl.maximum(best[0], key),)
    for e in tl.static_range(1, KEPT):
        one = tl.maximum(best[e], tl.minimum(best[e - 1], key))
        new = new + (one,)  # noqa: RUF005  # as above
    return new

"""Triton kernels that choose blocks: how much weight the slots of a block hold, and the best few.

A slot is a key made of some strips of tokens, a block holds `EACH` strips, a slot covers `SHARES`.
With p_t = exp(q·k_t / √d − lse) block u weighs

    Σ_o c_o p_{u·EACH + o},   c_o = min(SHARES, SHARES + o, EACH − o),   −SHARES < o < EACH

summed over the query heads of a key head. For each o the slots of many blocks are one product, so a
weight is added where its score was computed and no probability is ever written.

Blocks up to `near` before a query's own are always read, and so is the first one: only those
between are weighed, and all slots of these have ended. To choose, the number of a block stands in
the lowest bits of its weight, so that one maximum says both: of weights that differ in these bits
alone, less than 2⁻¹² of them up to 65,536 tokens in blocks of 64, the first is heavier.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def importance_kernel(
    q_ptr, k_ptr, lse_ptr, out_ptr, q_b, q_h, q_n, k_b, k_h, k_n, s_b, s_h, s_n,
    key_heads, group, first, last, slots, count, near, block, scale,
    QUERIES: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr,
    EACH: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Weights of BLOCKS blocks for QUERIES queries of first..last: (lines, last − first, count)."""
    tiles = tl.cdiv(last - first, QUERIES)
    line, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, g = (line // key_heads).to(tl.int64), (line % key_heads).to(tl.int64)
    begin = first + tile * QUERIES
    row = tl.arange(0, QUERIES)
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    d = tl.arange(0, WIDTH)
    real = begin + row < last
    if tl.program_id(1) * BLOCKS <= (begin + QUERIES - 1) // block - near:
        total = tl.zeros([QUERIES, BLOCKS], tl.float32)
        for a in range(group):
            h = g * group + a
            q_at = q_ptr + (b * q_b + h * q_h + begin.to(tl.int64) * q_n)
            q = tl.load(q_at + row[:, None] * q_n + d[None, :], mask=real[:, None], other=0)
            s_at = lse_ptr + (b * s_b + h * s_h + begin.to(tl.int64) * s_n)
            base = tl.load(s_at + row * s_n, mask=real, other=0)
            base = base * 1.4426950408889634
            for step in range(0, EACH + SHARES - 1):
                offset = step - (SHARES - 1)
                t = blocks * EACH + offset
                k_at = k_ptr + b * k_b + g * k_h + t[:, None].to(tl.int64) * k_n + d[None, :]
                k = tl.load(k_at, mask=((t >= 0) & (t < slots))[:, None], other=0)
                share = tl.minimum(SHARES + tl.minimum(offset, 0), EACH - offset)
                p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - base[:, None])
                total += p * share
        weighed = tl.where(real, (begin + row) // block - near, -1)
        out_at = out_ptr + (line.to(tl.int64) * (last - first) + tile * QUERIES) * count
        out_at = out_at + row[:, None] * count + blocks[None, :]
        tl.store(out_at, total, mask=blocks[None, :] <= weighed[:, None])


@triton.jit
def choose_kernel(
    weight_ptr, chosen_ptr, n, first, last, count, near, block,
    QUERIES: tl.constexpr, BLOCKS: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    """The first block, the near ones and the heaviest between: (lines, n, SELECTED), or `count`."""
    tiles = tl.cdiv(last - first, QUERIES)
    line = (tl.program_id(0) // tiles).to(tl.int64)
    rows = first + (tl.program_id(0) % tiles) * QUERIES + tl.arange(0, QUERIES)
    blocks = tl.arange(0, BLOCKS)
    real = rows < last
    own = rows // block
    held = real[:, None] & (blocks[None, :] > 0) & (blocks[None, :] <= own[:, None] - near)
    place = line * (last - first) + (rows - first).to(tl.int64)
    weight = tl.load(weight_ptr + place[:, None] * count + blocks[None, :], mask=held, other=0.0)
    at = chosen_ptr + (line * n + rows.to(tl.int64)) * SELECTED
    tl.store(at, rows * 0, mask=real)
    for c in range(0, near):
        close = own - c
        tl.store(at + 1 + c, tl.where(close > 0, close, count), mask=real)
    # Weights are not negative, so their bits are in order like themselves.
    key = weight.to(tl.int32, bitcast=True) & -BLOCKS
    key = tl.where(held, key | (BLOCKS - 1 - blocks)[None, :], -1)
    for c in range(1 + near, SELECTED):
        best = tl.max(key, 1)
        where = BLOCKS - 1 - (best & (BLOCKS - 1))
        tl.store(at + c, tl.where(best >= 0, where, count), mask=real)
        key = tl.where(key == best[:, None], -1, key)

"""Triton kernel that concatenates the gradients of several sets of heads, and adds them up.

Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(ptr, b, h, i, s_b, s_h, s_n, live, WIDTH: tl.constexpr):
    at = (b * s_b + h * s_h + i * s_n)[:, None] + tl.arange(0, WIDTH)[None, :]
    return tl.load(ptr + at, mask=live[:, None], other=0)


@triton.jit
def side_by_side_kernel(
    q_ptr, p_ptr, k0_ptr, v0_ptr, k1_ptr, v1_ptr, k2_ptr, v2_ptr, out_ptr,
    q_b, q_h, q_n, p_b, p_h, p_n, k0_b, k0_h, k0_n, v0_b, v0_h, v0_n,
    k1_b, k1_h, k1_n, v1_b, v1_h, v1_n, k2_b, k2_h, k2_n, v2_b, v2_h, v2_n,
    sums_ptr, heads, key_heads, n, tokens,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """q + p, then the others: (tokens, heads + 6 key heads, WIDTH), and sums of ROWS tokens each.

    A program takes one head of ROWS tokens; adjacent heads are written together.
    """
    columns = heads + 6 * key_heads
    tile, column = tl.program_id(0) // columns, tl.program_id(0) % columns
    own = column < heads
    part = tl.where(own, -1, (column - heads) // key_heads)
    h = tl.where(own, column, (column - heads) % key_heads).to(tl.int64)
    token = tile * ROWS + tl.arange(0, ROWS)
    b, i, live = (token // n).to(tl.int64), (token % n).to(tl.int64), token < tokens
    if part == -1:
        x = _load(q_ptr, b, h, i, q_b, q_h, q_n, live, WIDTH).to(tl.float32)
        x += _load(p_ptr, b, h, i, p_b, p_h, p_n, live, WIDTH).to(tl.float32)
        x = x.to(out_ptr.dtype.element_ty)
    elif part == 0:
        x = _load(k0_ptr, b, h, i, k0_b, k0_h, k0_n, live, WIDTH)
    elif part == 1:
        x = _load(v0_ptr, b, h, i, v0_b, v0_h, v0_n, live, WIDTH)
    elif part == 2:
        x = _load(k1_ptr, b, h, i, k1_b, k1_h, k1_n, live, WIDTH)
    elif part == 3:
        x = _load(v1_ptr, b, h, i, v1_b, v1_h, v1_n, live, WIDTH)
    elif part == 4:
        x = _load(k2_ptr, b, h, i, k2_b, k2_h, k2_n, live, WIDTH)
    else:
        x = _load(v2_ptr, b, h, i, v2_b, v2_h, v2_n, live, WIDTH)
    d = tl.arange(0, WIDTH)
    out_at = out_ptr + (token.to(tl.int64) * columns + column)[:, None] * WIDTH + d[None, :]
    tl.store(out_at, x, mask=live[:, None])
    if SUMS:
        sums_at = sums_ptr + (tile.to(tl.int64) * columns + column) * WIDTH + d
        tl.store(sums_at, tl.sum(x.to(tl.float32), 0))

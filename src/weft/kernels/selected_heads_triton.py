"""Triton kernel that lays the gradients of several sets of heads side by side.

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
    heads, key_heads, n, tokens,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """q + p, then the others: (tokens, heads + 6 key heads, WIDTH); a row is a head of a token."""
    first, tiles = tl.cdiv(tokens * heads, ROWS), tl.cdiv(tokens * key_heads, ROWS)
    own = tl.program_id(0) < first
    part = tl.where(own, 0, (tl.program_id(0) - first) // tiles)
    tile = tl.where(own, tl.program_id(0), (tl.program_id(0) - first) % tiles)
    count = tl.where(own, heads, key_heads)
    row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token, h = row // count, row % count
    b, i, live = token // n, token % n, token < tokens
    place = h + tl.where(own, 0, heads + part * key_heads)
    out_at = (token * (heads + 6 * key_heads) + place)[:, None] * WIDTH
    out_at = out_ptr + out_at + tl.arange(0, WIDTH)[None, :]
    kept = live[:, None]
    if own:
        x = _load(q_ptr, b, h, i, q_b, q_h, q_n, live, WIDTH).to(tl.float32)
        x += _load(p_ptr, b, h, i, p_b, p_h, p_n, live, WIDTH).to(tl.float32)
        tl.store(out_at, x.to(out_ptr.dtype.element_ty), mask=kept)
    elif part == 0:
        tl.store(out_at, _load(k0_ptr, b, h, i, k0_b, k0_h, k0_n, live, WIDTH), mask=kept)
    elif part == 1:
        tl.store(out_at, _load(v0_ptr, b, h, i, v0_b, v0_h, v0_n, live, WIDTH), mask=kept)
    elif part == 2:
        tl.store(out_at, _load(k1_ptr, b, h, i, k1_b, k1_h, k1_n, live, WIDTH), mask=kept)
    elif part == 3:
        tl.store(out_at, _load(v1_ptr, b, h, i, v1_b, v1_h, v1_n, live, WIDTH), mask=kept)
    elif part == 4:
        tl.store(out_at, _load(k2_ptr, b, h, i, k2_b, k2_h, k2_n, live, WIDTH), mask=kept)
    else:
        tl.store(out_at, _load(v2_ptr, b, h, i, v2_b, v2_h, v2_n, live, WIDTH), mask=kept)

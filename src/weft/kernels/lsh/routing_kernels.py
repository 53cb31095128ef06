# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels that bring places back to tokens: a token may stand at several, or at none.

`index` lists the places of all lines by token, and `start` says where the list of a token begins.
Sums run along that list, so their order is fixed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.lsh.row_kernels import row_address, row_mask


@triton.jit
def mean_kernel(
    part_ptr, lse_ptr, v_ptr, index_ptr, start_ptr, out_ptr,
    v_b, v_h, v_n, o_b, o_h, o_n, heads, group, n,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The mean over a token's places; where it read nothing stands its v."""
    blocks = tl.cdiv(n, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    real = at < n
    b, h = line // heads, line % heads
    first = tl.load(start_ptr + line * (n + 1) + at, mask=real, other=0)
    count = tl.load(start_ptr + line * (n + 1) + at + 1, mask=real, other=0) - first
    v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, at, WIDTH)
    mask = row_mask(real, HEAD, WIDTH)
    v = tl.load(v_at, mask=mask, other=0).to(tl.float32)
    total = tl.zeros([M, WIDTH], tl.float32)
    for step in range(0, tl.max(count, 0)):
        held = step < count
        place = tl.load(index_ptr + first + step, mask=held, other=0)
        part_at = row_address(part_ptr, 0, 0, 0, 0, WIDTH, place, WIDTH)
        part = tl.load(part_at, mask=held[:, None], other=0).to(tl.float32)
        alone = tl.load(lse_ptr + place, mask=held, other=0) == float("-inf")
        total += tl.where(alone[:, None], v, part)
    out = total / tl.maximum(count, 1)[:, None].to(tl.float32)
    o_at = row_address(out_ptr, b, h, o_b, o_h, o_n, at, WIDTH)
    tl.store(o_at, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def sum_kernel(
    dx_part_ptr, dv_part_ptr, lse_ptr, dout_ptr, index_ptr, start_ptr, dx_ptr, dv_ptr,
    g_b, g_h, g_n, x_b, x_h, x_n, y_b, y_h, y_n, heads, group, n,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients added up over a token's places, for all query heads of one value head."""
    blocks = tl.cdiv(n, M)
    line = tl.program_id(0) // blocks
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    real = at < n
    b, own = (line // (heads // group)).to(tl.int64), line % (heads // group)
    mask = row_mask(real, HEAD, WIDTH)
    dv = tl.zeros([M, WIDTH], tl.float32)
    for h in range(own * group, (own + 1) * group):
        head = b * heads + h
        first = tl.load(start_ptr + head * (n + 1) + at, mask=real, other=0)
        count = tl.load(start_ptr + head * (n + 1) + at + 1, mask=real, other=0) - first
        g_at = row_address(dout_ptr, b, h, g_b, g_h, g_n, at, WIDTH)
        g = tl.load(g_at, mask=mask, other=0).to(tl.float32)
        dx = tl.zeros([M, WIDTH], tl.float32)
        for step in range(0, tl.max(count, 0)):
            held = step < count
            place = tl.load(index_ptr + first + step, mask=held, other=0)
            dx_at = row_address(dx_part_ptr, 0, 0, 0, 0, WIDTH, place, WIDTH)
            dx += tl.load(dx_at, mask=held[:, None], other=0)
            dv_at = row_address(dv_part_ptr, 0, 0, 0, 0, WIDTH, place, WIDTH)
            dv += tl.load(dv_at, mask=held[:, None], other=0)
            # A place that read nothing copied its token's value.
            alone = tl.load(lse_ptr + place, mask=held, other=0) == float("-inf")
            dv += tl.where((alone & held)[:, None], g, 0.0)
        to = row_address(dx_ptr, b, h, x_b, x_h, x_n, at, WIDTH)
        tl.store(to, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    to = row_address(dv_ptr, b, own, y_b, y_h, y_n, at, WIDTH)
    tl.store(to, dv.to(dv_ptr.dtype.element_ty), mask=mask)

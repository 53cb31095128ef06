"""Triton kernels around attention in an order that the tokens choose: each goes once through rows.

Where sorted tokens stand, the norms of keys, rounds merged into one softmax, and, backward, what
rows need of their outputs and gradients of all rounds added up. Every `lse` is in base 2.

Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.dropout_kernels import column_numbers, row_numbers

FAR = tl.constexpr(1 << 30)  # beyond the end of every run


@triton.jit
def row_address(ptr, b, h, s_b, s_h, s_n, at, WIDTH: tl.constexpr):
    """Addresses of rows `at` of one head."""
    d = tl.arange(0, WIDTH)
    return ptr + b * s_b + h * s_h + at[:, None].to(tl.int64) * s_n + d[None, :]


@triton.jit
def row_mask(real, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    """Which numbers of rows there are: a head of HEAD stands in WIDTH, a power of two."""
    mask = real[:, None]
    if HEAD < WIDTH:
        mask = mask & (tl.arange(0, WIDTH) < HEAD)[None, :]
    return mask


@triton.jit
def places_kernel(
    key_ptr, index_ptr, start_ptr, token_ptr, lo_ptr, hi_ptr, n, total, chunk, lookback,
    BLOCK: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """From sorted keys and what they came from: tokens by place, and the runs of buckets."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    line = at // n * n
    index = tl.load(index_ptr + at, mask=real, other=0).to(tl.int32)
    tl.store(token_ptr + at, index - line, mask=real)
    if BUCKETS:
        key = tl.load(key_ptr + at, mask=real, other=0)
        first = tl.load(start_ptr + key, mask=real, other=0)
        last = tl.load(start_ptr + key + 1, mask=real, other=0)
        own = (at - first) // chunk
        lo = first + tl.maximum(own - lookback, 0) * chunk
        hi = tl.minimum(first + (own + lookback + 1) * chunk, last)
        tl.store(lo_ptr + at, lo - line, mask=real)
        tl.store(hi_ptr + at, hi - line, mask=real)


@triton.jit
def ring_of(length, places, chunk, turns, BY_PLACE: tl.constexpr):
    """Places of the ring of chunks that hold something, and how many chunks a run has."""
    used = tl.maximum(tl.cdiv(length, chunk), 1)
    if BY_PLACE:
        used = tl.cdiv(places, chunk)
    return used * chunk, tl.minimum(turns + 1, used)


@triton.jit
def columns_kernel(
    token_ptr, norm_ptr, length_ptr, lse_ptr, delta_ptr, mark_ptr, value_ptr,
    heads, rounds, n, places, extent, kind, chunk, seeds,
    BLOCK: tl.constexpr, RING: tl.constexpr, BY_PLACE: tl.constexpr, DROPS: tl.constexpr,
    BACK: tl.constexpr,
):  # fmt: skip
    """What the places of a line carry as columns, in order, and on around the ring behind its end.

    marks    token (n: none), place (FAR: none), what it draws as a column and as a row
    values   norm and, backward, log-sum-exp and delta of its row
    """
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < extent
    head = line // rounds
    length = tl.load(length_ptr + head // heads).to(tl.int32)
    place = at
    if RING:
        ring, _ = ring_of(length, places, chunk, 0, BY_PLACE)
        place = at % ring
    token = tl.load(token_ptr + line * places + place, mask=here & (place < places), other=n)
    real = here & (token < length)
    mark_ptr += line * extent + at
    value_ptr += line * extent + at
    tl.store(mark_ptr, tl.where(real, token, n), mask=here)
    tl.store(mark_ptr + kind, tl.where(real, at, FAR), mask=here)
    tl.store(value_ptr, tl.load(norm_ptr + head * n + token, mask=real, other=0), mask=here)
    if DROPS:
        drawn = column_numbers(seeds, line, place).to(tl.int32, bitcast=True)
        tl.store(mark_ptr + 2 * kind, drawn, mask=here)
    if DROPS and BACK:
        drawn = row_numbers(seeds, line, place).to(tl.int32, bitcast=True)
        tl.store(mark_ptr + 3 * kind, drawn, mask=here)
    if BACK:
        row = head * n + token
        if BY_PLACE:
            row = line * places + place
        lse = tl.load(lse_ptr + row, mask=real, other=0)
        tl.store(value_ptr + kind, lse, mask=here)
        tl.store(value_ptr + 2 * kind, tl.load(delta_ptr + row, mask=real, other=0), mask=here)


@triton.jit
def norm_kernel(
    x_ptr, norm_ptr, x_b, x_h, x_n, heads, n, eps, keyed,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """norm = 1 / √(|x|² + eps) of every row; 1 of the first `keyed`, which are keys already."""
    blocks = tl.cdiv(n, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    real = at < n
    here = row_address(x_ptr, line // heads, line % heads, x_b, x_h, x_n, at, WIDTH)
    x = tl.load(here, mask=row_mask(real, HEAD, WIDTH), other=0).to(tl.float32)
    square = tl.maximum(tl.sum(x * x, 1) + eps, 1e-24)
    norm = tl.where(at < keyed, 1.0, 1.0 / tl.sqrt(square))
    tl.store(norm_ptr + line * n + at, norm, mask=real)


@triton.jit
def merge_kernel(
    part_ptr, part_lse_ptr, v_ptr, length_ptr, out_ptr, lse_ptr,
    v_b, v_h, v_n, o_b, o_h, o_n, heads, group, rounds, n,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The rounds of a block of tokens as one softmax; a token that read nothing gets its v."""
    blocks = tl.cdiv(n, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    b, h = line // heads, line % heads
    real = at < tl.load(length_ptr + b).to(tl.int32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, WIDTH], tl.float32)
    for r in range(0, rounds):
        here = line * rounds + r
        lse = tl.load(part_lse_ptr + here * n + at, mask=real, other=float("-inf"))
        part_at = row_address(part_ptr, here, 0, n * WIDTH, 0, WIDTH, at, WIDTH)
        part = tl.load(part_at, mask=real[:, None], other=0).to(tl.float32)
        new_top = tl.maximum(top, lse)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight, shrink = tl.exp2(lse - base), tl.exp2(top - base)
        acc = acc * shrink[:, None] + part * weight[:, None]
        total = total * shrink + weight
        top = new_top
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, at, WIDTH)
    v = tl.load(v_at, mask=row_mask(real & (total == 0), HEAD, WIDTH), other=0).to(tl.float32)
    out = tl.where(alive[:, None], acc / safe[:, None], v)
    o_at = row_address(out_ptr, b, h, o_b, o_h, o_n, at, WIDTH)
    tl.store(o_at, out.to(out_ptr.dtype.element_ty), mask=row_mask(at < n, HEAD, WIDTH))
    lse = tl.where(alive, top + tl.log2(safe), float("-inf"))
    tl.store(lse_ptr + line * n + at, lse, mask=at < n)


@triton.jit
def delta_kernel(
    out_ptr, dout_ptr, token_ptr, length_ptr, delta_ptr,
    o_b, o_h, o_n, g_b, g_h, g_n, heads, rows,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, BY_PLACE: tl.constexpr,
):  # fmt: skip
    """delta = dout·out of every row; by place, out is there and dout at the token."""
    blocks = tl.cdiv(rows, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    b, h = line // heads, line % heads
    length = tl.load(length_ptr + b).to(tl.int32)
    token = at
    if BY_PLACE:
        token = tl.load(token_ptr + line * rows + at, mask=at < rows, other=length)
    mask = row_mask((token < length) & (at < rows), HEAD, WIDTH)
    out = tl.load(row_address(out_ptr, b, h, o_b, o_h, o_n, at, WIDTH), mask=mask, other=0)
    dout = tl.load(row_address(dout_ptr, b, h, g_b, g_h, g_n, token, WIDTH), mask=mask, other=0)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    tl.store(delta_ptr + line * rows + at, delta, mask=at < rows)


@triton.jit
def sum_kernel(
    dx_part_ptr, dv_part_ptr, dout_ptr, lse_ptr, length_ptr, dx_ptr, dv_ptr,
    g_b, g_h, g_n, x_b, x_h, x_n, y_b, y_h, y_n, heads, group, rounds, n,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The rounds of a block of tokens added up, for all query heads of one value head."""
    blocks = tl.cdiv(n, M)
    line = tl.program_id(0) // blocks
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    b, own = (line // (heads // group)).to(tl.int64), line % (heads // group)
    real = at < tl.load(length_ptr + b).to(tl.int32)
    mask = real[:, None]
    dv = tl.zeros([M, WIDTH], tl.float32)
    for h in range(own * group, (own + 1) * group):
        head = b * heads + h
        dx = tl.zeros([M, WIDTH], tl.float32)
        for r in range(0, rounds):
            part = (head * rounds + r) * n * WIDTH
            dx += tl.load(
                row_address(dx_part_ptr, part, 0, 1, 0, WIDTH, at, WIDTH), mask=mask, other=0
            )
            dv += tl.load(
                row_address(dv_part_ptr, part, 0, 1, 0, WIDTH, at, WIDTH), mask=mask, other=0
            )
        # A token that read nothing copied its own value.
        alone = real & (tl.load(lse_ptr + head * n + at, mask=real, other=0) == float("-inf"))
        g_at = row_address(dout_ptr, b, h, g_b, g_h, g_n, at, WIDTH)
        dv += tl.load(g_at, mask=row_mask(alone, HEAD, WIDTH), other=0)
        dx_at = row_address(dx_ptr, b, h, x_b, x_h, x_n, at, WIDTH)
        tl.store(dx_at, dx.to(dx_ptr.dtype.element_ty), mask=row_mask(at < n, HEAD, WIDTH))
    dv_at = row_address(dv_ptr, b, own, y_b, y_h, y_n, at, WIDTH)
    tl.store(dv_at, dv.to(dv_ptr.dtype.element_ty), mask=row_mask(at < n, HEAD, WIDTH))

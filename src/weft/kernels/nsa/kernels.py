# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels of attention to chosen blocks: block by block, not query by query.

A pair is a query and one of its blocks, number (line · n + query) · SELECTED + place in its list; a
line is one key head of one row. `order` holds all pairs sorted by block, `starts` where the list of
each block begins. Lists are cut into segments of equal length, one for each program: `owners` says
whose it is, `cuts` which is a block's first. A program multiplies its one block with the queries
of its list, ROWS rows at a time: GROUP rows, the query heads of the line, for each pair.

    forward    values and log-sum-exp of each pair, then joined for each query
    backward   gradients of q for each pair, then summed; gradients of k and v of each segment,
               then summed for each block that has several

So every product is full whatever the queries choose, nothing is added atomically, and q, k and v
are read a few times only. Softmax is in base 2. Strides are those of (b, h, n, d) tensors in any
memory order; the last axis is contiguous. Dropout is that of the block-sparse kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.dropout_kernels import column_numbers, kept_factors, row_numbers


@triton.jit
def _segment(starts, cuts, owners, lists, count, length):
    """Of this program: its line, its block, and where its share of the list begins and ends."""
    owner = tl.load(owners + tl.program_id(0))
    live = owner < lists
    owner = tl.minimum(owner, lists - 1)
    first = tl.load(starts + owner) + (tl.program_id(0) - tl.load(cuts + owner)) * length
    last = tl.minimum(first + length, tl.load(starts + owner + 1))
    return owner // count, owner % count, first, tl.where(live, last, first)


@triton.jit
def _block(ptr, line, key_heads, s_b, s_h, s_n, keys, m, WIDTH: tl.constexpr):
    """Rows `keys` of one line, 0 from m on."""
    base = ptr + (line // key_heads).to(tl.int64) * s_b + (line % key_heads).to(tl.int64) * s_h
    at = base + keys[:, None].to(tl.int64) * s_n + tl.arange(0, WIDTH)[None, :]
    return tl.load(at, mask=keys[:, None] < m, other=0)


@triton.jit
def _place(line, key_heads, group, a, token, s_b, s_h, s_n):
    """Where the rows of query heads `a` of a line stand for queries `token`."""
    b, g = (line // key_heads).to(tl.int64), (line % key_heads).to(tl.int64)
    return b * s_b + (g * group + a) * s_h + token * s_n


@triton.jit
def _pairs(order, at, last, line, n, group, start, ROWS: tl.constexpr, GROUP: tl.constexpr,
           SELECTED: tl.constexpr):  # fmt: skip
    """ROWS // GROUP pairs of a list, a row for each query head.

    Pair, query, head, which rows count, and the last key that a row reads. Rows that do not count
    are copies of others that read no key, so that whatever is loaded for them needs no mask.
    """
    row = tl.arange(0, ROWS)
    a = row % GROUP
    live = (row // GROUP < last - at) & (a < group)
    a = tl.minimum(a, group - 1)
    pair = tl.load(order + tl.minimum(at + row // GROUP, last - 1)).to(tl.int32)
    token = pair // SELECTED - line * n
    return pair.to(tl.int64), token.to(tl.int64), a, live, tl.where(live, token + start, -1)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, part_ptr, lse_ptr, order, starts, cuts, owners,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n,
    key_heads, group, n, m, start, lists, count, length, scale, seeds, threshold, grow,
    ROWS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SELECTED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Values (pairs, group, WIDTH) and log-sum-exp (pairs, group) of the pairs of one segment."""
    line, u, first, last = _segment(starts, cuts, owners, lists, count, length)
    keys = u * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH)
    k = _block(k_ptr, line, key_heads, k_b, k_h, k_n, keys, m, WIDTH)
    v = _block(v_ptr, line, key_heads, v_b, v_h, v_n, keys, m, WIDTH)
    if DROPS:
        drawn = column_numbers(seeds, line, keys)[None, :]
    for at in range(first, last, ROWS // GROUP):
        pair, token, a, live, until = _pairs(
            order, at, last, line, n, group, start, ROWS, GROUP, SELECTED
        )
        q_at = _place(line, key_heads, group, a, token, q_b, q_h, q_n)
        q = tl.load(q_ptr + q_at[:, None] + d[None, :])
        scores = tl.where(keys[None, :] <= until[:, None], tl.dot(q, tl.trans(k)), float("-inf"))
        top = tl.max(scores, 1) * scale
        base = tl.where(top == float("-inf"), 0.0, top)
        weights = tl.exp2(scores * scale - base[:, None])
        total = tl.sum(weights, 1)
        safe = tl.where(total > 0, total, 1.0)
        if DROPS:
            asks = row_numbers(seeds, line * group + a, token)[:, None]
            weights *= kept_factors(asks, drawn, threshold, grow)
        out = tl.dot(weights.to(v.dtype), v) * (1.0 / safe)[:, None]
        row = pair * group + a
        part_at = part_ptr + row[:, None] * WIDTH + d[None, :]
        tl.store(part_at, out.to(part_ptr.dtype.element_ty), mask=live[:, None])
        tl.store(lse_ptr + row, tl.where(total > 0, top + tl.log2(safe), top), mask=live)


@triton.jit
def join_kernel(
    part_ptr, part_lse_ptr, chosen_ptr, out_ptr, lse_ptr, o_b, o_h, o_n,
    key_heads, group, n, count,
    ROWS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, SELECTED: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """What the pairs of a query say, weighted by their log-sum-exp (also (b, h, n)) or summed."""
    tiles = tl.cdiv(n, ROWS // GROUP)
    line = tl.program_id(0) // tiles
    row = tl.arange(0, ROWS)
    token = (tl.program_id(0) % tiles).to(tl.int64) * (ROWS // GROUP) + row // GROUP
    a = row % GROUP
    d = tl.arange(0, WIDTH)
    live = (token < n) & (a < group)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for c in tl.range(0, SELECTED, loop_unroll_factor=4):
        pair = (line.to(tl.int64) * n + token) * SELECTED + c
        at = pair * group + a
        # A pair without a block holds anything: it is read like the others, so that no load waits
        # for another, and then left out.
        part = tl.load(part_ptr + at[:, None] * WIDTH + d[None, :], mask=live[:, None], other=0)
        there = tl.load(chosen_ptr + pair, mask=live, other=count) < count
        part = tl.where(there[:, None], part.to(tl.float32), 0.0)
        if WEIGHTED:
            own = tl.load(part_lse_ptr + at, mask=live, other=float("-inf"))
            own = tl.where(there, own, float("-inf"))
            new_top = tl.maximum(top, own)
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink, weight = tl.exp2(top - base), tl.exp2(own - base)
            acc = acc * shrink[:, None] + part * weight[:, None]
            total = total * shrink + weight
            top = new_top
        else:
            acc += part
    if WEIGHTED:
        safe = tl.where(total > 0, total, 1.0)
        acc = acc * (1.0 / safe)[:, None]
        lse_at = lse_ptr + _place(line, key_heads, group, a, token, key_heads * group * n, n, 1)
        tl.store(lse_at, tl.where(total > 0, top + tl.log2(safe), top), mask=live)
    out_at = out_ptr + _place(line, key_heads, group, a, token, o_b, o_h, o_n)
    out_at = out_at[:, None] + d[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def delta_kernel(
    out_ptr, dout_ptr, delta_ptr, o_b, o_h, o_n, g_b, g_h, g_n, heads, n,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dout·out of each query of each head: (b, h, n)."""
    tiles = tl.cdiv(n, ROWS)
    line = tl.program_id(0) // tiles
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    rows = (tl.program_id(0) % tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    real = rows < n
    o_at = out_ptr + b * o_b + h * o_h + rows[:, None] * o_n + d[None, :]
    g_at = dout_ptr + b * g_b + h * g_h + rows[:, None] * g_n + d[None, :]
    out = tl.load(o_at, mask=real[:, None], other=0).to(tl.float32)
    dout = tl.load(g_at, mask=real[:, None], other=0).to(tl.float32)
    tl.store(delta_ptr + line.to(tl.int64) * n + rows, tl.sum(out * dout, 1), mask=real)


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, sums_ptr, dk_ptr, dv_ptr,
    order, starts, cuts, owners,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, g_b, g_h, g_n, x_b, x_h, x_n, y_b, y_h, y_n,
    key_heads, group, n, m, start, lists, count, length, scale, seeds, threshold, grow,
    natural_scale,
    ROWS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SELECTED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """dq (pairs, group, WIDTH) of one segment, and its sums for dk and dv (2, BLOCK, WIDTH).

    If it is the only segment of its block, these are dk and dv.
    """
    line, u, first, last = _segment(starts, cuts, owners, lists, count, length)
    keys = u * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH)
    k = _block(k_ptr, line, key_heads, k_b, k_h, k_n, keys, m, WIDTH)
    v = _block(v_ptr, line, key_heads, v_b, v_h, v_n, keys, m, WIDTH)
    dk = tl.zeros([BLOCK, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK, WIDTH], tl.float32)
    if DROPS:
        drawn = column_numbers(seeds, line, keys)[None, :]
    for at in range(first, last, ROWS // GROUP):
        pair, token, a, live, until = _pairs(
            order, at, last, line, n, group, start, ROWS, GROUP, SELECTED
        )
        q_at = _place(line, key_heads, group, a, token, q_b, q_h, q_n)
        q = tl.load(q_ptr + q_at[:, None] + d[None, :])
        g_at = _place(line, key_heads, group, a, token, g_b, g_h, g_n)
        dout = tl.load(dout_ptr + g_at[:, None] + d[None, :])
        s_at = _place(line, key_heads, group, a, token, key_heads * group * n, n, 1)
        base = tl.load(lse_ptr + s_at)
        delta = tl.load(delta_ptr + s_at) * natural_scale
        # Queries × keys: what belongs to a query is then two numbers of a thread, not sixteen.
        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - base[:, None])
        p = tl.where(keys[None, :] <= until[:, None], p, 0.0)
        dp = tl.dot(dout, tl.trans(v))
        weights = p
        if DROPS:
            asks = row_numbers(seeds, line * group + a, token)[:, None]
            kept = kept_factors(asks, drawn, threshold, grow)
            weights = p * kept
            dp *= kept
        dv = tl.dot(tl.trans(weights.to(dout.dtype)), dout, dv)
        ds = (p * (dp * natural_scale - delta[:, None])).to(q.dtype)
        dk = tl.dot(tl.trans(ds), q, dk)
        dq = tl.dot(ds, k)
        dq_at = dq_ptr + (pair * group + a)[:, None] * WIDTH + d[None, :]
        tl.store(dq_at, dq.to(dq_ptr.dtype.element_ty), mask=live[:, None])
    owner = line * count + u
    alone = tl.load(cuts + owner + 1) - tl.load(cuts + owner) == 1
    if first < last:
        if alone:
            real = keys[:, None] < m
            b, h = (line // key_heads).to(tl.int64), (line % key_heads).to(tl.int64)
            wide = keys[:, None].to(tl.int64)
            x_at = b * x_b + h * x_h + wide * x_n + d[None, :]
            y_at = b * y_b + h * y_h + wide * y_n + d[None, :]
            tl.store(dk_ptr + x_at, dk.to(dk_ptr.dtype.element_ty), mask=real)
            tl.store(dv_ptr + y_at, dv.to(dv_ptr.dtype.element_ty), mask=real)
        else:
            sums_at = sums_ptr + tl.program_id(0).to(tl.int64) * (2 * BLOCK * WIDTH)
            sums_at += tl.arange(0, BLOCK)[:, None] * WIDTH + d[None, :]
            tl.store(sums_at, dk)
            tl.store(sums_at + BLOCK * WIDTH, dv)


@triton.jit
def keys_kernel(
    sums_ptr, dk_ptr, dv_ptr, cuts, x_b, x_h, x_n, y_b, y_h, y_n, key_heads, m, count,
    SEGMENTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of dk and dv of one block: the sums over its segments, unless it has just one."""
    owner, tile = tl.program_id(0), tl.program_id(1)
    line, u = owner // count, owner % count
    e = tl.arange(0, ROWS * WIDTH)
    inner = (tile * ROWS * WIDTH + e)[None, :]
    dk = tl.zeros([ROWS * WIDTH], tl.float32)
    dv = tl.zeros([ROWS * WIDTH], tl.float32)
    first, last = tl.load(cuts + owner), tl.load(cuts + owner + 1)
    if last - first != 1:
        for at in range(first, last, SEGMENTS):
            segment = at + tl.arange(0, SEGMENTS)
            held = (segment < last)[:, None] & (inner >= 0)
            place = sums_ptr + segment[:, None].to(tl.int64) * (2 * BLOCK * WIDTH) + inner
            dk += tl.sum(tl.load(place, mask=held, other=0.0), 0)
            dv += tl.sum(tl.load(place + BLOCK * WIDTH, mask=held, other=0.0), 0)
        b, g = (line // key_heads).to(tl.int64), (line % key_heads).to(tl.int64)
        key = (u * BLOCK + tile * ROWS + e // WIDTH).to(tl.int64)
        x_at = dk_ptr + b * x_b + g * x_h + key * x_n + e % WIDTH
        y_at = dv_ptr + b * y_b + g * y_h + key * y_n + e % WIDTH
        tl.store(x_at, dk.to(dk_ptr.dtype.element_ty), mask=key < m)
        tl.store(y_at, dv.to(dv_ptr.dtype.element_ty), mask=key < m)

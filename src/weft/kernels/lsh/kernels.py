"""Triton kernels of attention in an order that the tokens choose: rows are gathered inside.

A line is one round of one head. Its places 0, 1, ... hold token numbers; the row at place p reads a
run of places, lo ≤ x < hi. Two kinds of runs:

    buckets   lo is given, and hi is p: what stands before p in its bucket, from some chunk on
    ring      the chunk of p with its neighbours, p itself left out; x runs around a ring, so it may
              be negative or beyond the end

Queries and keys are the same vectors, k_j = x_j · norm_j, so the kernels read x, norm and v alone,
each row where its token stands. What else a column of the run carries stands in order in two tables
(`columns_kernel`), so that a step along the run computes nothing of it: marks, its token, how far
into the run it is and what it draws for dropout; values, its norm and, backward, what its row
carries. Softmax is accumulated online in base 2, and so is every `lse`.

Paper: Dao 2023, FlashAttention-2, https://arxiv.org/abs/2307.08691
Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.dropout_kernels import column_numbers, kept_factors, row_numbers
from weft.kernels.lsh.row_kernels import ring_of, row_address, row_mask


@triton.jit
def _around(p, own, first, chunk, ahead, turns, reach, ring, M: tl.constexpr):
    """Runs of `reach` chunks around a ring, each beginning `ahead` chunks after that of p.

    The first of them begins inside 0 ≤ x < ring, so no x of the block passes 3 · ring.
    """
    chunk_of = first // chunk
    begin = ((chunk_of + ahead) * chunk + turns * ring) % ring
    lo = begin + (p // chunk - chunk_of) * chunk
    size = tl.where(own, reach * chunk, 0)
    last = tl.minimum(first + M, ring) - 1
    end = tl.where(first < ring, begin + (last // chunk - chunk_of + reach) * chunk, begin)
    itself = (p - lo + 3 * ring) % ring
    return lo, size, itself, begin, end


@triton.jit
def _reads(
    p, own, lo_ptr, places, first, chunk, back, turns, reach, ring,
    M: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """The run of each place p of a block, and the range that holds them all."""
    if RING:
        lo, size, itself, begin, end = _around(p, own, first, chunk, -back, turns, reach, ring, M)
    else:
        lo = tl.load(lo_ptr + p, mask=own, other=0)
        size = tl.where(own, p - lo, 0)
        itself = size
        begin = tl.load(lo_ptr + first)
        end = tl.minimum(first + M, places)
    return lo, size, itself, begin, end


@triton.jit
def _readers(
    p, own, hi_ptr, places, first, chunk, back, turns, reach, ring,
    M: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """The run of rows that read each place p of a block, and the range that holds them all."""
    if RING:
        ahead = back + 1 - reach
        lo, size, itself, begin, end = _around(p, own, first, chunk, ahead, turns, reach, ring, M)
    else:
        lo = p + 1
        size = tl.where(own, tl.load(hi_ptr + p, mask=own, other=0) - lo, 0)
        itself = size
        begin = first
        end = tl.load(hi_ptr + tl.minimum(first + M, places) - 1)
    return lo, size, itself, begin, end


@triton.jit
def _column(start, ring, STEP: tl.constexpr, RING: tl.constexpr):
    """Where the columns of a run from `start` on stand in the tables, and how much less that is."""
    turned = start
    if RING:
        turned = tl.where(turned >= ring, turned - ring, turned)
        turned = tl.where(turned >= ring, turned - ring, turned)
    return turned + tl.arange(0, STEP), start - turned


@triton.jit
def _drawn(mark_ptr, at):
    """The numbers that columns draw for dropout."""
    return tl.load(mark_ptr + at).to(tl.uint32, bitcast=True)[None, :]


@triton.jit
def _seen(code, lo, size, itself, RING: tl.constexpr):
    """Own places × columns of the run: which of them count."""
    far = code[None, :] - lo[:, None]
    # What stands before the run is negative: as a number without sign, beyond every end too.
    seen = far.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)[:, None]
    if RING:
        seen = seen & (far != itself[:, None])
    return seen


@triton.jit
def forward_kernel(
    x_ptr, v_ptr, mark_ptr, value_ptr, token_ptr, lo_ptr, length_ptr, out_ptr, lse_ptr,
    x_b, x_h, x_n, v_b, v_h, v_n, extent, kind,
    heads, group, rounds, n, places, chunk, lookback, lookahead, scale, seeds, threshold, grow,
    M: tl.constexpr, STEP: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    RING: tl.constexpr, BY_PLACE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Values and log-sum-exp of a block of places in one line, written by token or by place."""
    blocks = tl.cdiv(places, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    b, h = line // rounds // heads, line // rounds % heads
    length = tl.load(length_ptr + b).to(tl.int32)
    turns = lookback + lookahead
    ring, reach = ring_of(length, places, chunk, turns, BY_PLACE)
    mark_ptr += line * extent
    value_ptr += line * extent
    p = first + tl.arange(0, M)
    tokens = tl.load(token_ptr + line * places + p, mask=p < places, other=n)
    own = tokens < length
    lo, size, itself, begin, end = _reads(
        p, own, lo_ptr + line * places, places, first, chunk, lookback, turns, reach, ring, M, RING
    )
    mine = row_mask(own, HEAD, WIDTH)
    q = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, tokens, WIDTH), mask=mine, other=0)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, WIDTH], tl.float32)
    if DROPS:
        asks = row_numbers(seeds, line, p)[:, None]
    for start in range(begin, end, STEP):
        at, less = _column(start, ring, STEP, RING)
        token = tl.load(mark_ptr + at)
        mask = row_mask(token < n, HEAD, WIDTH)
        k = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, token, WIDTH), mask=mask, other=0)
        v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, token, WIDTH)
        v = tl.load(v_at, mask=mask, other=0)
        scores = tl.dot(q, tl.trans(k)) * tl.load(value_ptr + at)[None, :]
        seen = _seen(tl.load(mark_ptr + kind + at), lo - less, size, itself, RING)
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top * scale)
        weights = tl.exp2(scores * scale - base[:, None])
        shrink = tl.exp2(top * scale - base)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        if DROPS:
            weights *= kept_factors(asks, _drawn(mark_ptr + 2 * kind, at), threshold, grow)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        top = new_top
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    lse = tl.where(alive, top * scale + tl.log2(safe), float("-inf"))
    row = tokens
    if BY_PLACE:
        row = p
    out = row_address(out_ptr, line, 0, places * WIDTH, 0, WIDTH, row, WIDTH)
    acc = acc * (1.0 / safe)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=own[:, None])
    tl.store(lse_ptr + line * places + row, lse, mask=own)


@triton.jit
def backward_kernel(
    x_ptr, v_ptr, dout_ptr, mark_ptr, value_ptr, norm_ptr, lse_ptr, delta_ptr, token_ptr, lo_ptr,
    hi_ptr, length_ptr, dx_ptr, dv_ptr, x_b, x_h, x_n, v_b, v_h, v_n, g_b, g_h, g_n, extent, kind,
    heads, group, rounds, n, places, chunk, lookback, lookahead, scale, natural, seeds, threshold,
    grow,
    M: tl.constexpr, STEP: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    RING: tl.constexpr, BY_PLACE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of x, asking and being read, and of v, for a block of places in one line."""
    blocks = tl.cdiv(places, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    b, h = line // rounds // heads, line // rounds % heads
    length = tl.load(length_ptr + b).to(tl.int32)
    turns = lookback + lookahead
    ring, reach = ring_of(length, places, chunk, turns, BY_PLACE)
    mark_ptr += line * extent
    value_ptr += line * extent
    p = first + tl.arange(0, M)
    tokens = tl.load(token_ptr + line * places + p, mask=p < places, other=n)
    own = tokens < length
    # What rows carry stands by token and head, or by place and line.
    stats = (b * heads + h) * n
    row = tokens
    if BY_PLACE:
        stats = line * places
        row = p
    mine = row_mask(own, HEAD, WIDTH)
    x_own = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, tokens, WIDTH), mask=mine, other=0)
    g_at = row_address(dout_ptr, b, h, g_b, g_h, g_n, tokens, WIDTH)
    g_own = tl.load(g_at, mask=mine, other=0)
    base = tl.load(lse_ptr + stats + row, mask=own, other=0)
    delta = tl.load(delta_ptr + stats + row, mask=own, other=0)
    lo, size, itself, begin, end = _reads(
        p, own, lo_ptr + line * places, places, first, chunk, lookback, turns, reach, ring, M, RING
    )
    dx = tl.zeros([M, WIDTH], tl.float32)
    if DROPS:
        asks = row_numbers(seeds, line, p)[:, None]
    for start in range(begin, end, STEP):
        at, less = _column(start, ring, STEP, RING)
        token = tl.load(mark_ptr + at)
        mask = row_mask(token < n, HEAD, WIDTH)
        k = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, token, WIDTH), mask=mask, other=0)
        v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, token, WIDTH)
        v = tl.load(v_at, mask=mask, other=0)
        norm = tl.load(value_ptr + at)[None, :]
        weights = tl.exp2(tl.dot(x_own, tl.trans(k)) * norm * scale - base[:, None])
        seen = _seen(tl.load(mark_ptr + kind + at), lo - less, size, itself, RING)
        weights = tl.where(seen, weights, 0.0)
        back = tl.dot(g_own, tl.trans(v))
        if DROPS:
            back *= kept_factors(asks, _drawn(mark_ptr + 2 * kind, at), threshold, grow)
        back = weights * (back - delta[:, None]) * norm
        dx = tl.dot(back.to(k.dtype), k, dx)
    v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, tokens, WIDTH)
    v_own = tl.load(v_at, mask=mine, other=0)
    norm_own = tl.load(norm_ptr + (b * heads + h) * n + tokens, mask=own, other=0)
    lo, size, itself, begin, end = _readers(
        p, own, hi_ptr + line * places, places, first, chunk, lookback, turns, reach, ring, M, RING
    )
    dk = tl.zeros([M, WIDTH], tl.float32)
    dv = tl.zeros([M, WIDTH], tl.float32)
    if DROPS:
        read = column_numbers(seeds, line, p)[:, None]
    for start in range(begin, end, STEP):
        at, less = _column(start, ring, STEP, RING)
        token = tl.load(mark_ptr + at)
        mask = row_mask(token < n, HEAD, WIDTH)
        q = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, token, WIDTH), mask=mask, other=0)
        g = tl.load(row_address(dout_ptr, b, h, g_b, g_h, g_n, token, WIDTH), mask=mask, other=0)
        # Keys × queries: the products below read the weights as they come, without a transpose.
        scores = tl.dot(x_own, tl.trans(q)) * (norm_own * scale)[:, None]
        weights = tl.exp2(scores - tl.load(value_ptr + kind + at)[None, :])
        seen = _seen(tl.load(mark_ptr + kind + at), lo - less, size, itself, RING)
        weights = tl.where(seen, weights, 0.0)
        back = tl.dot(v_own, tl.trans(g))
        delta_at = tl.load(value_ptr + 2 * kind + at)[None, :]
        if DROPS:
            asked = _drawn(mark_ptr + 3 * kind, at)
            dropped = weights * kept_factors(asked, read, threshold, grow)
            back = dropped * back - weights * delta_at
        else:
            dropped = weights
            back = weights * (back - delta_at)
        dv = tl.dot(dropped.to(g.dtype), g, dv)
        dk = tl.dot(back.to(q.dtype), q, dk)
    # k = x · norm(x), so dk goes on to x by norm · dk − norm³ (x·dk) x.
    wide = x_own.to(tl.float32)
    along = tl.sum(wide * dk, 1) * norm_own * norm_own
    dx = (dx + (dk - along[:, None] * wide) * norm_own[:, None]) * natural
    dx_at = row_address(dx_ptr, line, 0, places * WIDTH, 0, WIDTH, row, WIDTH)
    tl.store(dx_at, dx.to(dx_ptr.dtype.element_ty), mask=own[:, None])
    dv_at = row_address(dv_ptr, line, 0, places * WIDTH, 0, WIDTH, row, WIDTH)
    tl.store(dv_at, dv.to(dv_ptr.dtype.element_ty), mask=own[:, None])

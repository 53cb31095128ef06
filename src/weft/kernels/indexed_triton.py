"""Triton kernels of attention in an order that the tokens choose: rows are gathered inside.

A line is one round of one head. Its places 0, 1, ... hold token numbers; the row at place p reads a
run of places, lo ≤ x < hi. Two kinds of runs:

    buckets   lo is given, and hi is p: what stands before p in its bucket, from some chunk on
    ring      the chunk of p with its neighbours, p itself left out; x runs around a ring, so it may
              be negative or beyond the end

Queries and keys are the same vectors, k_j = x_j · norm_j, so the kernels read x, norm and v alone,
each row where its token stands. Softmax is accumulated online in base 2, and so is every `lse`.

Paper: Dao 2023, FlashAttention-2, https://arxiv.org/abs/2307.08691
Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.block_sparse_triton import (
    column_numbers,
    dropout_seeds,
    kept_weights,
    row_numbers,
)
from weft.kernels.indexed_rows_triton import row_address


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
def _tokens(token_ptr, x, n, places, ring, RING: tl.constexpr):
    """Places of the run x, and the tokens there; n where there is none."""
    place = x
    if RING:
        place = tl.where(place >= ring, place - ring, place)
        place = tl.where(place >= ring, place - ring, place)
    return place, tl.load(token_ptr + place, mask=place < places, other=n)


@triton.jit
def _seen(x, real, lo, size, itself, RING: tl.constexpr):
    """Own places × places x of the run: which of them count."""
    # How far into the run; a place without a token is beyond every end.
    far = tl.where(real, x, 1 << 30)[None, :] - lo[:, None]
    # What stands before the run is negative: as a number without sign, beyond every end too.
    seen = far.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)[:, None]
    if RING:
        seen = seen & (far != itself[:, None])
    return seen


@triton.jit
def forward_kernel(
    x_ptr, v_ptr, norm_ptr, token_ptr, lo_ptr, length_ptr, out_ptr, lse_ptr,
    x_b, x_h, x_n, v_b, v_h, v_n,
    heads, group, rounds, n, places, chunk, lookback, lookahead, scale, seeds, threshold, grow,
    M: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr, RING: tl.constexpr,
    BY_PLACE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Values and log-sum-exp of a block of places in one line, written by token or by place."""
    blocks = tl.cdiv(places, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    b, h = line // rounds // heads, line // rounds % heads
    length = tl.load(length_ptr + b).to(tl.int32)
    used = tl.maximum(tl.cdiv(length, chunk), 1)
    if BY_PLACE:
        used = tl.cdiv(places, chunk)
    ring, turns = used * chunk, lookback + lookahead
    reach = tl.minimum(turns + 1, used)
    token_ptr += line * places
    p = first + tl.arange(0, M)
    tokens = tl.load(token_ptr + p, mask=p < places, other=n)
    own = tokens < length
    lo, size, itself, begin, end = _reads(
        p, own, lo_ptr + line * places, places, first, chunk, lookback, turns, reach, ring, M, RING
    )
    q = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, tokens, WIDTH), mask=own[:, None], other=0)
    norms = norm_ptr + (b * heads + h) * n
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, WIDTH], tl.float32)
    if DROPS:
        row_seed, col_seed = dropout_seeds(seeds, line)
        drawn = row_numbers(p, row_seed)[:, None]
    for start in range(begin, end, STEP):
        x = start + tl.arange(0, STEP)
        place, token = _tokens(token_ptr, x, n, places, ring, RING)
        real = token < length
        mask = real[:, None]
        k = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, token, WIDTH), mask=mask, other=0)
        v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, token, WIDTH)
        v = tl.load(v_at, mask=mask, other=0)
        norm = tl.load(norms + token, mask=real, other=0) * scale
        scores = tl.dot(q, tl.trans(k)) * norm[None, :]
        seen = _seen(x, real, lo, size, itself, RING)
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        if DROPS:
            kept = kept_weights(drawn, column_numbers(place, col_seed)[None, :], threshold)
            weights = tl.where(kept, weights * grow, 0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        top = new_top
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    lse = tl.where(alive, top + tl.log2(safe), float("-inf"))
    row = tokens
    if BY_PLACE:
        row = p
    out = row_address(out_ptr, line, 0, places * WIDTH, 0, WIDTH, row, WIDTH)
    tl.store(out, (acc / safe[:, None]).to(out_ptr.dtype.element_ty), mask=own[:, None])
    tl.store(lse_ptr + line * places + row, lse, mask=own)


@triton.jit
def backward_kernel(
    x_ptr, v_ptr, dout_ptr, norm_ptr, lse_ptr, delta_ptr, token_ptr, lo_ptr, hi_ptr, length_ptr,
    dx_ptr, dv_ptr, x_b, x_h, x_n, v_b, v_h, v_n, g_b, g_h, g_n,
    heads, group, rounds, n, places, chunk, lookback, lookahead, scale, natural, seeds, threshold,
    grow,
    M: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr, RING: tl.constexpr,
    BY_PLACE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of x, asking and being read, and of v, for a block of places in one line."""
    blocks = tl.cdiv(places, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * M
    b, h = line // rounds // heads, line // rounds % heads
    length = tl.load(length_ptr + b).to(tl.int32)
    used = tl.maximum(tl.cdiv(length, chunk), 1)
    if BY_PLACE:
        used = tl.cdiv(places, chunk)
    ring, turns = used * chunk, lookback + lookahead
    reach = tl.minimum(turns + 1, used)
    token_ptr += line * places
    p = first + tl.arange(0, M)
    tokens = tl.load(token_ptr + p, mask=p < places, other=n)
    own = tokens < length
    norms = norm_ptr + (b * heads + h) * n
    # What rows carry stands by token and head, or by place and line.
    stats = (b * heads + h) * n
    row = tokens
    if BY_PLACE:
        stats = line * places
        row = p
    x_own = tl.load(
        row_address(x_ptr, b, h, x_b, x_h, x_n, tokens, WIDTH), mask=own[:, None], other=0
    )
    g_at = row_address(dout_ptr, b, h, g_b, g_h, g_n, tokens, WIDTH)
    g_own = tl.load(g_at, mask=own[:, None], other=0)
    base = tl.load(lse_ptr + stats + row, mask=own, other=0)
    delta = tl.load(delta_ptr + stats + row, mask=own, other=0)
    lo, size, itself, begin, end = _reads(
        p, own, lo_ptr + line * places, places, first, chunk, lookback, turns, reach, ring, M, RING
    )
    dx = tl.zeros([M, WIDTH], tl.float32)
    if DROPS:
        row_seed, col_seed = dropout_seeds(seeds, line)
        drawn = row_numbers(p, row_seed)[:, None]
    for start in range(begin, end, STEP):
        at = start + tl.arange(0, STEP)
        place, token = _tokens(token_ptr, at, n, places, ring, RING)
        real = token < length
        mask = real[:, None]
        k = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, token, WIDTH), mask=mask, other=0)
        v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, token, WIDTH)
        v = tl.load(v_at, mask=mask, other=0)
        norm = tl.load(norms + token, mask=real, other=0)
        weights = tl.exp2(tl.dot(x_own, tl.trans(k)) * (norm * scale)[None, :] - base[:, None])
        weights = tl.where(_seen(at, real, lo, size, itself, RING), weights, 0.0)
        back = tl.dot(g_own, tl.trans(v))
        if DROPS:
            kept = kept_weights(drawn, column_numbers(place, col_seed)[None, :], threshold)
            back = tl.where(kept, back * grow, 0.0)
        back = weights * (back - delta[:, None]) * norm[None, :]
        dx = tl.dot(back.to(k.dtype), k, dx)
    v_at = row_address(v_ptr, b, h // group, v_b, v_h, v_n, tokens, WIDTH)
    v_own = tl.load(v_at, mask=own[:, None], other=0)
    norm_own = tl.load(norms + tokens, mask=own, other=0)
    lo, size, itself, begin, end = _readers(
        p, own, hi_ptr + line * places, places, first, chunk, lookback, turns, reach, ring, M, RING
    )
    dk = tl.zeros([M, WIDTH], tl.float32)
    dv = tl.zeros([M, WIDTH], tl.float32)
    if DROPS:
        drawn = column_numbers(p, col_seed)[:, None]
    for start in range(begin, end, STEP):
        at = start + tl.arange(0, STEP)
        place, token = _tokens(token_ptr, at, n, places, ring, RING)
        real = token < length
        mask = real[:, None]
        q = tl.load(row_address(x_ptr, b, h, x_b, x_h, x_n, token, WIDTH), mask=mask, other=0)
        g = tl.load(row_address(dout_ptr, b, h, g_b, g_h, g_n, token, WIDTH), mask=mask, other=0)
        asks = token
        if BY_PLACE:
            asks = place
        its_base = tl.load(lse_ptr + stats + asks, mask=real, other=0)
        its_delta = tl.load(delta_ptr + stats + asks, mask=real, other=0)
        # Keys × queries: the products below read the weights as they come, without a transpose.
        scores = tl.dot(x_own, tl.trans(q)) * (norm_own * scale)[:, None]
        weights = tl.exp2(scores - its_base[None, :])
        weights = tl.where(_seen(at, real, lo, size, itself, RING), weights, 0.0)
        back = tl.dot(v_own, tl.trans(g))
        dropped = weights
        if DROPS:
            kept = kept_weights(row_numbers(place, row_seed)[None, :], drawn, threshold)
            dropped = tl.where(kept, weights * grow, 0.0)
            back = tl.where(kept, back * grow, 0.0)
        dv = tl.dot(dropped.to(g.dtype), g, dv)
        back = weights * (back - its_delta[None, :])
        dk = tl.dot(back.to(q.dtype), q, dk)
    # k = x · norm(x), so dk goes on to x by norm · dk − norm³ (x·dk) x.
    wide = x_own.to(tl.float32)
    along = tl.sum(wide * dk, 1) * norm_own * norm_own
    dx = (dx + (dk - along[:, None] * wide) * norm_own[:, None]) * natural
    dx_at = row_address(dx_ptr, line, 0, places * WIDTH, 0, WIDTH, row, WIDTH)
    tl.store(dx_at, dx.to(dx_ptr.dtype.element_ty), mask=own[:, None])
    dv_at = row_address(dv_ptr, line, 0, places * WIDTH, 0, WIDTH, row, WIDTH)
    tl.store(dv_at, dv.to(dv_ptr.dtype.element_ty), mask=own[:, None])

# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels of attention to few keys, and of few queries: the few stand in one block.

One program walks a segment of the many of one line. To few keys, softmax is at hand: backward
recomputes the weights, writes dq, and sums dk and dv of its segment. Few queries ask each segment
by itself, and the results are merged; backward writes dk and dv, and sums dq. Strides are those
of (b, h, n, d) tensors in any memory order with a contiguous last axis; the few are contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(ptr, line, heads, s_b, s_h, s_n, at, WIDTH: tl.constexpr):
    """Addresses of rows `at` of one line."""
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    d = tl.arange(0, WIDTH)
    return ptr + b * s_b + h * s_h + at[:, None].to(tl.int64) * s_n + d[None, :]


@triton.jit
def _few(ptr, line, r, R: tl.constexpr, WIDTH: tl.constexpr):
    """All r rows of one line of a contiguous tensor, zeros after them."""
    j, d = tl.arange(0, R), tl.arange(0, WIDTH)
    at = ptr + (line.to(tl.int64) * r + j[:, None]) * WIDTH + d[None, :]
    return tl.load(at, mask=j[:, None] < r, other=0.0)


@triton.jit
def _weights(q, k, there, scale):
    """softmax over the keys that are there; `scale` is in base 2."""
    scores = tl.dot(q, tl.trans(k)) * scale
    scores = tl.where(there, scores, float("-inf"))
    p = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, counts_ptr, o_ptr, q_b, q_h, q_n, o_b, o_h, o_n,
    heads, n, r, segment, scale,
    ROWS: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Values of one segment of queries."""
    line, at = tl.program_id(0), tl.program_id(1)
    k, v = _few(k_ptr, line, r, R, D), _few(v_ptr, line, r, R, D)
    there = tl.arange(0, R)[None, :] < tl.load(counts_ptr + line // heads)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = rows[:, None] < n
        q = tl.load(_rows(q_ptr, line, heads, q_b, q_h, q_n, rows, D), mask=mask, other=0.0)
        p = _weights(q, k, there, scale)
        out = tl.dot(p.to(v.dtype), v)
        o_at = _rows(o_ptr, line, heads, o_b, o_h, o_n, rows, D)
        tl.store(o_at, out.to(o_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, counts_ptr, g_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_b, q_h, q_n, g_b, g_h, g_n, x_b, x_h, x_n,
    heads, n, r, segment, scale, natural_scale,
    ROWS: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dq of one segment, and its share of dk and dv: (line, segment, R, D)."""
    line, at = tl.program_id(0), tl.program_id(1)
    k, v = _few(k_ptr, line, r, R, D), _few(v_ptr, line, r, R, D)
    there = tl.arange(0, R)[None, :] < tl.load(counts_ptr + line // heads)
    dk, dv = tl.zeros([R, D], tl.float32), tl.zeros([R, D], tl.float32)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = rows[:, None] < n
        q = tl.load(_rows(q_ptr, line, heads, q_b, q_h, q_n, rows, D), mask=mask, other=0.0)
        g = tl.load(_rows(g_ptr, line, heads, g_b, g_h, g_n, rows, D), mask=mask, other=0.0)
        p = _weights(q, k, there, scale)
        dp = tl.dot(g, tl.trans(v))
        ds = p * (dp - tl.sum(p * dp, 1)[:, None])
        half = ds.to(q.dtype)
        dq = tl.dot(half, k) * natural_scale
        x_at = _rows(dq_ptr, line, heads, x_b, x_h, x_n, rows, D)
        tl.store(x_at, dq.to(dq_ptr.dtype.element_ty), mask=mask)
        dk = tl.dot(tl.trans(half), q, dk)
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv)
    j, d = tl.arange(0, R), tl.arange(0, D)
    place = (line * tl.num_programs(1) + at).to(tl.int64) * R * D
    sums = place + j[:, None] * D + d[None, :]
    tl.store(dk_ptr + sums, dk * natural_scale)
    tl.store(dv_ptr + sums, dv)


@triton.jit
def ask_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, part_ptr, lse_ptr, k_b, k_h, k_n, v_b, v_h, v_n,
    heads, n, r, segment, scale,
    ROWS: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """All queries over one segment of keys: values (line, segment, R, D), base-2 log-sum-exp."""
    line, at = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths_ptr + line // heads)
    q = _few(q_ptr, line, r, R, D)
    top, total = tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)
    acc = tl.zeros([R, D], tl.float32)
    for start in range(at * segment, tl.minimum((at + 1) * segment, length), ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = rows[:, None] < length
        k = tl.load(_rows(k_ptr, line, heads, k_b, k_h, k_n, rows, D), mask=mask, other=0.0)
        v = tl.load(_rows(v_ptr, line, heads, v_b, v_h, v_n, rows, D), mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(rows[None, :] < length, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        top = new_top
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    j, d = tl.arange(0, R), tl.arange(0, D)
    place = (line * tl.num_programs(1) + at).to(tl.int64) * R
    tl.store(part_ptr + (place + j[:, None]) * D + d[None, :], acc / safe[:, None])
    tl.store(lse_ptr + place + j, tl.where(alive, top + tl.log2(safe), float("-inf")))


@triton.jit
def ask_back_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, g_ptr, o_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr,
    k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, y_b, y_h, y_n,
    heads, n, r, segment, scale, natural_scale,
    ROWS: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dk and dv of one segment, 0 after the length; its share of dq: (line, segment, R, D)."""
    line, at = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths_ptr + line // heads)
    q, g = _few(q_ptr, line, r, R, D), _few(g_ptr, line, r, R, D)
    j, d = tl.arange(0, R), tl.arange(0, D)
    lse = tl.load(lse_ptr + line.to(tl.int64) * r + j, mask=j < r, other=0.0)
    delta = tl.sum(g.to(tl.float32) * _few(o_ptr, line, r, R, D).to(tl.float32), 1)
    dq = tl.zeros([R, D], tl.float32)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = rows[:, None] < n
        k = tl.load(_rows(k_ptr, line, heads, k_b, k_h, k_n, rows, D), mask=mask, other=0.0)
        v = tl.load(_rows(v_ptr, line, heads, v_b, v_h, v_n, rows, D), mask=mask, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - lse[None, :])
        p = tl.where((rows[:, None] < length) & (j[None, :] < r), p, 0.0)
        ds = (p * (tl.dot(v, tl.trans(g)) - delta[None, :])).to(k.dtype)
        dv = tl.dot(p.to(g.dtype), g)
        dk = tl.dot(ds, q) * natural_scale
        x_at = _rows(dk_ptr, line, heads, x_b, x_h, x_n, rows, D)
        tl.store(x_at, dk.to(dk_ptr.dtype.element_ty), mask=mask)
        y_at = _rows(dv_ptr, line, heads, y_b, y_h, y_n, rows, D)
        tl.store(y_at, dv.to(dv_ptr.dtype.element_ty), mask=mask)
        dq = tl.dot(tl.trans(ds), k, dq)
    place = (line * tl.num_programs(1) + at).to(tl.int64) * R
    tl.store(dq_ptr + (place + j[:, None]) * D + d[None, :], dq * natural_scale)


@triton.jit
def merge_kernel(
    part_ptr, lse_ptr, o_ptr, whole_ptr, segments, r,
    R: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One landmark of one line: what its segments (line, segment, R, D) found, as one softmax."""
    line, j = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    top, total, acc = float("-inf"), 0.0, tl.zeros([D], tl.float32)
    for start in range(0, segments, STEP):
        s = start + tl.arange(0, STEP)
        place = (line.to(tl.int64) * segments + s) * R + j
        real = s < segments
        lse = tl.load(lse_ptr + place, mask=real, other=float("-inf"))
        at = part_ptr + place[:, None] * D + d[None, :]
        part = tl.load(at, mask=real[:, None], other=0.0)
        new_top = tl.maximum(top, tl.max(lse, 0))
        p = tl.exp2(lse - new_top)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 0)
        acc = acc * shrink + tl.sum(p[:, None] * part, 0)
        top = new_top
    own = line.to(tl.int64) * r + j
    tl.store(o_ptr + own * D + d, (acc / total).to(o_ptr.dtype.element_ty))
    tl.store(whole_ptr + own, top + tl.log2(total))


@triton.jit
def total_kernel(
    part_ptr, o_ptr, segments, r, R: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr
):
    """One landmark of one line: the sum over its segments (line, segment, R, D)."""
    line, j = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    acc = tl.zeros([D], tl.float32)
    for start in range(0, segments, STEP):
        s = start + tl.arange(0, STEP)
        place = (line.to(tl.int64) * segments + s) * R + j
        at = part_ptr + place[:, None] * D + d[None, :]
        acc += tl.sum(tl.load(at, mask=s[:, None] < segments, other=0.0), 0)
    own = line.to(tl.int64) * r + j
    tl.store(o_ptr + own * D + d, acc.to(o_ptr.dtype.element_ty))

"""Triton kernels of causal linear attention: sums of segments, values, gradients.

A line (one head of one row) is cut into segments; one program walks the chunks of a segment, so the
sums live in registers and are never written per chunk. Passes over the sequence:

    forward    sums of each segment (k, v), then, from the sums before it, the values
    backward   gradient of q the same way, and the sums of φ(q) dnumᵀ of each segment; then, from
               those *after* a segment, the gradients of k and v

A segment's S (F, E) and z (F) stand one behind the other in one buffer (lines, segments, F·E + F);
`prefix_kernel` turns sums of segments into sums before, or after, each of them.

With num_i = Σ_{j≤i} (φ(q_i)·φ(k_j)) v_j and den_i = Σ_{j≤i} φ(q_i)·φ(k_j) + ε the gradients are
those of two plain products: dnum = dout / den and dden = −(dout·out) / den.

Strides are those of (b, h, n, width) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _features(x, real, ELU: tl.constexpr):
    """φ(x) in float32, 0 where a row is not real."""
    x = x.to(tl.float32)
    if ELU:
        x = tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))
    return tl.where(real[:, None], x, 0.0)


@triton.jit
def _slope(x, grad, ELU: tl.constexpr):
    """The gradient of x from that of φ(x)."""
    if ELU:
        x = x.to(tl.float32)
        grad = tl.where(x > 0, grad, grad * tl.exp(tl.minimum(x, 0.0)))
    return grad


@triton.jit
def _rows(ptr, line, heads, s_b, s_h, s_n, at, WIDTH: tl.constexpr):
    """Addresses of rows `at` of one line."""
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    d = tl.arange(0, WIDTH)
    return ptr + b * s_b + h * s_h + at[:, None].to(tl.int64) * s_n + d[None, :]


@triton.jit
def _load_sums(ptr, place, F: tl.constexpr, E: tl.constexpr):
    f = tl.arange(0, F)
    base = ptr + place * (F * E + F)
    return tl.load(base + f[:, None] * E + tl.arange(0, E)[None, :]), tl.load(base + F * E + f)


@triton.jit
def _store_sums(ptr, place, sums, total, F: tl.constexpr, E: tl.constexpr):
    f = tl.arange(0, F)
    base = ptr + place * (F * E + F)
    tl.store(base + f[:, None] * E + tl.arange(0, E)[None, :], sums)
    tl.store(base + F * E + f, total)


@triton.jit
def prefix_kernel(ptr, segments, size, BLOCK: tl.constexpr, AFTER: tl.constexpr):
    """In place: each segment's sums become those of all earlier, or all later, segments."""
    line, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(0, segments):
        segment = segments - 1 - step if AFTER else step
        here = ptr + (line * segments + segment) * size + at
        own = tl.load(here, mask=held, other=0.0)
        tl.store(here, total, mask=held)
        total += own


@triton.jit
def sums_kernel(
    k_ptr, v_ptr, s_ptr, k_b, k_h, k_n, v_b, v_h, v_n, heads, n, segment,
    W: tl.constexpr, F: tl.constexpr, E: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    """S = Σ φ(k) vᵀ and z = Σ φ(k) of one segment."""
    line, at = tl.program_id(0), tl.program_id(1)
    place = (line * tl.num_programs(1) + at).to(tl.int64)
    sums, total = tl.zeros([F, E], tl.float32), tl.zeros([F], tl.float32)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), W):
        rows = start + tl.arange(0, W)
        real = rows < n
        mask = real[:, None]
        k = tl.load(_rows(k_ptr, line, heads, k_b, k_h, k_n, rows, F), mask=mask, other=0)
        v = tl.load(_rows(v_ptr, line, heads, v_b, v_h, v_n, rows, E), mask=mask, other=0)
        fk = _features(k, real, ELU)
        sums = tl.dot(tl.trans(fk.to(v.dtype)), v, sums)
        total += tl.sum(fk, 0)
    _store_sums(s_ptr, place, sums, total, F, E)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, den_ptr, s_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n, heads, n, segment, eps,
    W: tl.constexpr, F: tl.constexpr, E: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    """Values and denominators of one segment, from the sums before it."""
    line, at = tl.program_id(0), tl.program_id(1)
    place = (line * tl.num_programs(1) + at).to(tl.int64)
    sums, total = _load_sums(s_ptr, place, F, E)
    i = tl.arange(0, W)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), W):
        rows = start + i
        real = rows < n
        mask = real[:, None]
        q = tl.load(_rows(q_ptr, line, heads, q_b, q_h, q_n, rows, F), mask=mask, other=0)
        k = tl.load(_rows(k_ptr, line, heads, k_b, k_h, k_n, rows, F), mask=mask, other=0)
        v = tl.load(_rows(v_ptr, line, heads, v_b, v_h, v_n, rows, E), mask=mask, other=0)
        fq, fk = _features(q, real, ELU), _features(k, real, ELU)
        hq, hk = fq.to(v.dtype), fk.to(v.dtype)
        scores = tl.where(i[:, None] >= i[None, :], tl.dot(hq, tl.trans(hk)), 0.0)
        num = tl.dot(scores.to(v.dtype), v)
        num = tl.dot(hq, sums.to(v.dtype), num)
        den = tl.sum(scores, 1) + tl.sum(fq * total[None, :], 1) + eps
        out = num / den[:, None]
        o_at = _rows(o_ptr, line, heads, o_b, o_h, o_n, rows, E)
        tl.store(o_at, out.to(o_ptr.dtype.element_ty), mask=mask)
        tl.store(den_ptr + line.to(tl.int64) * n + rows, den, mask=real)
        sums = tl.dot(tl.trans(hk), v, sums)
        total += tl.sum(fk, 0)


@triton.jit
def query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, g_ptr, den_ptr, dden_ptr, s_ptr, r_ptr, dq_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n, g_b, g_h, g_n, x_b, x_h, x_n,
    heads, n, segment,
    W: tl.constexpr, F: tl.constexpr, E: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    """dq of one segment, from the sums before it; also dden, R = Σ φ(q) dnumᵀ, r = Σ φ(q) dden."""
    line, at = tl.program_id(0), tl.program_id(1)
    place = (line * tl.num_programs(1) + at).to(tl.int64)
    sums, total = _load_sums(s_ptr, place, F, E)
    later, later_total = tl.zeros([F, E], tl.float32), tl.zeros([F], tl.float32)
    i = tl.arange(0, W)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), W):
        rows = start + i
        real = rows < n
        mask = real[:, None]
        k = tl.load(_rows(k_ptr, line, heads, k_b, k_h, k_n, rows, F), mask=mask, other=0)
        v = tl.load(_rows(v_ptr, line, heads, v_b, v_h, v_n, rows, E), mask=mask, other=0)
        g = tl.load(_rows(g_ptr, line, heads, g_b, g_h, g_n, rows, E), mask=mask, other=0)
        o = tl.load(_rows(o_ptr, line, heads, o_b, o_h, o_n, rows, E), mask=mask, other=0)
        den = tl.load(den_ptr + line.to(tl.int64) * n + rows, mask=real, other=1.0)
        dnum = (g.to(tl.float32) / den[:, None]).to(v.dtype)
        dden = -tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) / den
        tl.store(dden_ptr + line.to(tl.int64) * n + rows, dden, mask=real)
        fk = _features(k, real, ELU)
        hk = fk.to(v.dtype)
        back = tl.dot(dnum, tl.trans(v)) + dden[:, None]
        back = tl.where(i[:, None] >= i[None, :], back, 0.0)
        dfq = tl.dot(back.to(v.dtype), hk)
        dfq = tl.dot(dnum, tl.trans(sums.to(v.dtype)), dfq)
        dfq += dden[:, None] * total[None, :]
        q = tl.load(_rows(q_ptr, line, heads, q_b, q_h, q_n, rows, F), mask=mask, other=0)
        x_at = _rows(dq_ptr, line, heads, x_b, x_h, x_n, rows, F)
        tl.store(x_at, _slope(q, dfq, ELU).to(dq_ptr.dtype.element_ty), mask=mask)
        sums = tl.dot(tl.trans(hk), v, sums)
        total += tl.sum(fk, 0)
        fq = _features(q, real, ELU)
        later = tl.dot(tl.trans(fq.to(v.dtype)), dnum, later)
        later_total += tl.sum(fq * dden[:, None], 0)
    _store_sums(r_ptr, place, later, later_total, F, E)


@triton.jit
def key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, den_ptr, dden_ptr, s_ptr, dk_ptr, dv_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, g_b, g_h, g_n, x_b, x_h, x_n, y_b, y_h, y_n,
    heads, n, segment,
    W: tl.constexpr, F: tl.constexpr, E: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    """dk and dv of one segment, last chunk first, from the sums after it."""
    line, at = tl.program_id(0), tl.program_id(1)
    place = (line * tl.num_programs(1) + at).to(tl.int64)
    sums, total = _load_sums(s_ptr, place, F, E)
    i = tl.arange(0, W)
    first = at * segment
    count = tl.cdiv(tl.minimum(first + segment, n) - first, W)
    for step in range(0, count):
        rows = first + (count - 1 - step) * W + i
        real = rows < n
        mask = real[:, None]
        q = tl.load(_rows(q_ptr, line, heads, q_b, q_h, q_n, rows, F), mask=mask, other=0)
        k = tl.load(_rows(k_ptr, line, heads, k_b, k_h, k_n, rows, F), mask=mask, other=0)
        v = tl.load(_rows(v_ptr, line, heads, v_b, v_h, v_n, rows, E), mask=mask, other=0)
        g = tl.load(_rows(g_ptr, line, heads, g_b, g_h, g_n, rows, E), mask=mask, other=0)
        den = tl.load(den_ptr + line.to(tl.int64) * n + rows, mask=real, other=1.0)
        dden = tl.load(dden_ptr + line.to(tl.int64) * n + rows, mask=real, other=0)
        dnum = (g.to(tl.float32) / den[:, None]).to(v.dtype)
        fq, fk = _features(q, real, ELU), _features(k, real, ELU)
        hq, hk, hs = fq.to(v.dtype), fk.to(v.dtype), sums.to(v.dtype)
        later = i[:, None] <= i[None, :]
        scores = tl.where(later, tl.dot(hk, tl.trans(hq)), 0.0)
        dv = tl.dot(scores.to(v.dtype), dnum)
        dv = tl.dot(hk, hs, dv)
        back = tl.where(later, tl.dot(v, tl.trans(dnum)) + dden[None, :], 0.0)
        dfk = tl.dot(back.to(v.dtype), hq)
        dfk = tl.dot(v, tl.trans(hs), dfk) + total[None, :]
        x_at = _rows(dk_ptr, line, heads, x_b, x_h, x_n, rows, F)
        tl.store(x_at, _slope(k, dfk, ELU).to(dk_ptr.dtype.element_ty), mask=mask)
        y_at = _rows(dv_ptr, line, heads, y_b, y_h, y_n, rows, E)
        tl.store(y_at, dv.to(dv_ptr.dtype.element_ty), mask=mask)
        sums = tl.dot(tl.trans(hq), dnum, sums)
        total += tl.sum(fq * dden[:, None], 0)

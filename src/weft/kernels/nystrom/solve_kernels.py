# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels that solve with the attention among landmarks, one program per matrix.

    A = softmax(q kᵀ · scale),   Z_0 = Aᵀ / ‖A‖₁,   Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))),
    out = Z v

Rows of A add up to 1, so ‖A‖_∞ = 1 is left out, and so is its gradient: softmax takes it to 0.
Landmarks that are not there, and places after the last, stay by themselves: their rows and columns
of A are those of I. Products are as exact as float32. All r × r matrices are held by one program;
every Z is kept for the backward pass, which finds the rest of each iteration again.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _few(ptr, line, r, R: tl.constexpr, D: tl.constexpr):
    """Addresses of all r rows of one line of a contiguous tensor, and which there are."""
    j, d = tl.arange(0, R), tl.arange(0, D)
    at = ptr + (line.to(tl.int64) * r + j[:, None]) * D + d[None, :]
    return at, (j[:, None] < r) & (d[None, :] < D)


@triton.jit
def _square(ptr, step, line, lines, R: tl.constexpr):
    """Addresses of one matrix (R, R) of (iterations + 1, lines, R, R)."""
    j = tl.arange(0, R)
    return ptr + (step * lines + line).to(tl.int64) * R * R + j[:, None] * R + j[None, :]


@triton.jit
def _softmax(q, k, count, scale, R: tl.constexpr, EXACT: tl.constexpr):
    """A, where `count` landmarks are there; `scale` is in base 2."""
    i, j = tl.arange(0, R)[:, None], tl.arange(0, R)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=EXACT) * scale
    scores = tl.where(j < count, scores, float("-inf"))
    a = tl.exp2(scores - tl.max(scores, 1)[:, None])
    a = a / tl.sum(a, 1)[:, None]
    return tl.where(i < count, a, tl.where(i == j, 1.0, 0.0))


@triton.jit
def _inside(a, z, one, EXACT: tl.constexpr):
    """A Z, 15 I − A Z (7 I − A Z), and 13 I − A Z times that."""
    az = tl.dot(a, z, input_precision=EXACT)
    middle = 15.0 * one - tl.dot(az, 7.0 * one - az, input_precision=EXACT)
    return az, middle, 13.0 * one - tl.dot(az, middle, input_precision=EXACT)


@triton.jit
def solve_kernel(
    q_ptr, k_ptr, v_ptr, counts_ptr, z_ptr, o_ptr, heads, r, iterations, scale,
    R: tl.constexpr, D: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Z v of one line, and every Z."""
    line, lines = tl.program_id(0), tl.num_programs(0)
    at, real = _few(q_ptr, line, r, R, D)
    q = tl.load(at, mask=real, other=0.0)
    at, real = _few(k_ptr, line, r, R, D)
    k = tl.load(at, mask=real, other=0.0)
    a = _softmax(q, k, tl.load(counts_ptr + line // heads), scale, R, EXACT)
    j = tl.arange(0, R)
    one = tl.where(j[:, None] == j[None, :], 1.0, 0.0)
    size = tl.max(tl.where(j < r, tl.sum(a, 0), 0.0), 0)
    z = tl.trans(a) / size
    for step in range(0, iterations):
        tl.store(_square(z_ptr, step, line, lines, R), z)
        _, _, outer = _inside(a, z, one, EXACT)
        z = 0.25 * tl.dot(z, outer, input_precision=EXACT)
    tl.store(_square(z_ptr, iterations, line, lines, R), z)
    at, real = _few(v_ptr, line, r, R, D)
    v = tl.load(at, mask=real, other=0.0).to(tl.float32)
    out = tl.dot(z, v, input_precision=EXACT)
    at, real = _few(o_ptr, line, r, R, D)
    tl.store(at, out.to(o_ptr.dtype.element_ty), mask=real)


@triton.jit
def solve_back_kernel(
    q_ptr, k_ptr, v_ptr, counts_ptr, z_ptr, g_ptr, dq_ptr, dk_ptr, dv_ptr,
    heads, r, iterations, scale, natural_scale,
    R: tl.constexpr, D: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k and v of one line."""
    line, lines = tl.program_id(0), tl.num_programs(0)
    count = tl.load(counts_ptr + line // heads)
    j = tl.arange(0, R)
    one = tl.where(j[:, None] == j[None, :], 1.0, 0.0)
    at, real = _few(v_ptr, line, r, R, D)
    v = tl.load(at, mask=real, other=0.0).to(tl.float32)
    at, real = _few(g_ptr, line, r, R, D)
    g = tl.load(at, mask=real, other=0.0).to(tl.float32)
    z = tl.load(_square(z_ptr, iterations, line, lines, R))
    at, real = _few(dv_ptr, line, r, R, D)
    dv = tl.dot(tl.trans(z), g, input_precision=EXACT)
    tl.store(at, dv.to(dv_ptr.dtype.element_ty), mask=real)
    dz = tl.dot(g, tl.trans(v), input_precision=EXACT)
    at, real = _few(q_ptr, line, r, R, D)
    q = tl.load(at, mask=real, other=0.0)
    at, real = _few(k_ptr, line, r, R, D)
    k = tl.load(at, mask=real, other=0.0)
    a = _softmax(q, k, count, scale, R, EXACT)
    da = tl.zeros([R, R], tl.float32)
    for back in range(0, iterations):
        z = tl.load(_square(z_ptr, iterations - 1 - back, line, lines, R))
        az, middle, outer = _inside(a, z, one, EXACT)
        before = 0.25 * tl.dot(dz, tl.trans(outer), input_precision=EXACT)
        douter = 0.25 * tl.dot(tl.trans(z), dz, input_precision=EXACT)
        daz = tl.dot(douter, tl.trans(middle), input_precision=EXACT)
        dmiddle = tl.dot(tl.trans(az), douter, input_precision=EXACT)  # with the other sign
        daz += tl.dot(tl.trans(az), dmiddle, input_precision=EXACT)
        daz -= tl.dot(dmiddle, tl.trans(7.0 * one - az), input_precision=EXACT)
        da -= tl.dot(daz, tl.trans(z), input_precision=EXACT)
        dz = before - tl.dot(tl.trans(a), daz, input_precision=EXACT)
    # Z_0 = Aᵀ / size, and size is the largest column sum; columns that tie share its gradient.
    columns = tl.where(j < r, tl.sum(a, 0), 0.0)
    size = tl.max(columns, 0)
    largest = tl.where(columns == size, 1.0, 0.0)
    first = tl.trans(dz) / size
    dsize = -tl.sum(tl.sum(first * a, 1), 0) / size
    da += first + (largest * (dsize / tl.sum(largest, 0)))[None, :]
    ds = tl.where(j[:, None] < count, a * (da - tl.sum(a * da, 1)[:, None]), 0.0) * natural_scale
    at, real = _few(dq_ptr, line, r, R, D)
    dq = tl.dot(ds, k.to(tl.float32), input_precision=EXACT)
    tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=real)
    at, real = _few(dk_ptr, line, r, R, D)
    dk = tl.dot(tl.trans(ds), q.to(tl.float32), input_precision=EXACT)
    tl.store(at, dk.to(dk_ptr.dtype.element_ty), mask=real)

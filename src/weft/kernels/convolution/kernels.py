"""Triton kernels of weighted neighbours: out_i = Σ_s taps_is · x_(i + s − before), and back.

A block of rows is a product of a band of taps with the run of tokens that it reads. The gradient of
x is the same sum with the band mirrored. The gradient of the taps is the band of dout · xᵀ: entry
by entry where taps vary from token to token, else summed along its diagonals.

Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tokens(ptr, line, heads, s_b, s_h, s_n, at, n, width, WIDTH: tl.constexpr):
    """Rows `at` of one line, zeros beyond its ends."""
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    d = tl.arange(0, WIDTH)
    there = (at[:, None] >= 0) & (at[:, None] < n) & (d[None, :] < width)
    place = ptr + b * s_b + h * s_h + at[:, None].to(tl.int64) * s_n + d[None, :]
    return tl.load(place, mask=there, other=0.0)


@triton.jit
def sum_kernel(
    x_ptr, taps_ptr, o_ptr, x_b, x_h, x_n, t_b, t_h, t_n, o_b, o_h, o_n,
    heads, n, width, count, before,
    ROWS: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
    VARIES: tl.constexpr, MIRROR: tl.constexpr,
):  # fmt: skip
    """One block of sums; MIRROR: of what each token gave to others."""
    line, block = tl.program_id(0), tl.program_id(1)
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    taps = taps_ptr + b * t_b + h * t_h
    rows = block * ROWS + tl.arange(0, ROWS)
    first = block * ROWS - before
    if MIRROR:
        first = block * ROWS - (count - 1 - before)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for step in range(0, tl.cdiv(ROWS + count - 1, STEP)):
        cols = first + step * STEP + tl.arange(0, STEP)
        x = _tokens(x_ptr, line, heads, x_b, x_h, x_n, cols, n, width, WIDTH)
        asking, given = rows[:, None], cols[None, :]
        tap = given - asking + before
        if MIRROR:
            asking = cols[None, :]
            tap = rows[:, None] - asking + before
        held = (tap >= 0) & (tap < count)
        if VARIES:
            held = held & (asking >= 0) & (asking < n)
            band = tl.load(taps + asking.to(tl.int64) * t_n + tap, mask=held, other=0.0)
        else:
            band = tl.load(taps + tap, mask=held, other=0.0)
        acc = tl.dot(band, x, acc, input_precision="ieee")
    d = tl.arange(0, WIDTH)
    out = o_ptr + b * o_b + h * o_h + rows[:, None].to(tl.int64) * o_n + d[None, :]
    there = (rows[:, None] < n) & (d[None, :] < width)
    tl.store(out, acc.to(o_ptr.dtype.element_ty), mask=there)


@triton.jit
def varied_gradient_kernel(
    x_ptr, g_ptr, dtaps_ptr, x_b, x_h, x_n, g_b, g_h, g_n, t_b, t_h, t_n,
    heads, n, width, count, before,
    ROWS: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dtaps (b, h, n, t) of one block of rows."""
    line, block = tl.program_id(0), tl.program_id(1)
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    g = _tokens(g_ptr, line, heads, g_b, g_h, g_n, rows, n, width, WIDTH)
    for step in range(0, tl.cdiv(ROWS + count - 1, STEP)):
        cols = block * ROWS - before + step * STEP + tl.arange(0, STEP)
        x = _tokens(x_ptr, line, heads, x_b, x_h, x_n, cols, n, width, WIDTH)
        band = tl.dot(g, tl.trans(x), input_precision="ieee")
        tap = cols[None, :] - rows[:, None] + before
        held = (tap >= 0) & (tap < count) & (rows[:, None] < n)
        place = dtaps_ptr + b * t_b + h * t_h + rows[:, None].to(tl.int64) * t_n + tap
        tl.store(place, band.to(dtaps_ptr.dtype.element_ty), mask=held)


@triton.jit
def shared_gradient_kernel(
    x_ptr, g_ptr, sums_ptr, x_b, x_h, x_n, g_b, g_h, g_n,
    heads, n, width, count, before, segment,
    ROWS: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """sums (line, segment, step, t): dtaps of one run of rows, and of one step of its band."""
    line, at, step = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, j = tl.arange(0, ROWS), tl.arange(0, STEP)
    band = tl.zeros([ROWS, STEP], tl.float32)
    for start in range(at * segment, tl.minimum((at + 1) * segment, n), ROWS):
        g = _tokens(g_ptr, line, heads, g_b, g_h, g_n, start + i, n, width, WIDTH)
        cols = start - before + step * STEP + j
        x = _tokens(x_ptr, line, heads, x_b, x_h, x_n, cols, n, width, WIDTH)
        band = tl.dot(g, tl.trans(x), band, input_precision="ieee")
    tap = step * STEP + j[None, :] - i[:, None]
    place = (line * tl.num_programs(1) + at) * tl.num_programs(2) + step
    for s in range(0, count):
        found = tl.sum(tl.sum(tl.where(tap == s, band, 0.0), 1), 0)
        tl.store(sums_ptr + place.to(tl.int64) * count + s, found)

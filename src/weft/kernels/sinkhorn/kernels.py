# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels of Sinkhorn balancing: all iterations of one matrix in one program, and back.

A pass walks down the rows of the matrix and does a whole iteration: rows are divided by column
sums, which run along (causal) or come from the pass before, then by their own sum. Backward
walks up the rows with gradients h of logarithms, h_p = p dp, which no small sum can overflow:

    z = y / r,  y = p / c:   h_y = h_z − z Σ_row h_z,   h_p = h_y − p Σ_(rows that c feeds) h_y / c

Matrices are (line, u, u), contiguous, float32. A program reads again what it has written itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _whole(sums, TINY: tl.constexpr):
    """Sums that divide: 1 where there is nothing."""
    return tl.where(sums > TINY, sums, 1.0)


@triton.jit
def forward_kernel(
    s_ptr, allowed_ptr, p_ptr, c_ptr, u, iterations, p_line, p_slot, c_line, c_slot,
    ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    TINY: tl.constexpr,
):  # fmt: skip
    """Slot 0 of p: softmax of the scores; slot t + 1: slot t, divided; c: column sums of slot t.

    c has a row of sums per row of p where they run along, else one for all.
    """
    line = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    p_base, c_base = p_ptr + line * p_line, c_ptr + line * c_line
    total = tl.zeros([COLS], tl.float32)
    for first in range(0, u, ROWS):
        rows = first + i
        at = rows[:, None] * u + j[None, :]
        there = (rows[:, None] < u) & (j[None, :] < u)
        seen = there
        if CAUSAL:
            seen = there & (j[None, :] < rows[:, None])
        if MASKED:
            allowed = tl.load(allowed_ptr + line * u * u + at, mask=there, other=0)
            seen = there & (allowed != 0)
        scores = tl.load(s_ptr + line * u * u + at, mask=seen, other=float("-inf"))
        top = tl.max(scores, 1)
        top = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp(scores - top[:, None])
        p = p / _whole(tl.sum(p, 1), TINY)[:, None]
        tl.store(p_base + at, p, mask=there)
        total += tl.sum(p, 0)
    for it in range(0, iterations):
        tl.debug_barrier()
        running = tl.zeros([COLS], tl.float32)
        if not CAUSAL:
            total = _whole(total, TINY)
            tl.store(c_base + it * c_slot + j, total, mask=j < u)
        for first in range(0, u, ROWS):
            rows = first + i
            at = rows[:, None] * u + j[None, :]
            there = (rows[:, None] < u) & (j[None, :] < u)
            p = tl.load(p_base + it * p_slot + at, mask=there, other=0.0)
            if CAUSAL:
                c = _whole(running[None, :] + tl.cumsum(p, 0), TINY)
                tl.store(c_base + it * c_slot + at, c, mask=there)
                running += tl.sum(p, 0)
                y = p / c
            else:
                y = p / total[None, :]
            z = y / _whole(tl.sum(y, 1), TINY)[:, None]
            tl.store(p_base + (it + 1) * p_slot + at, z, mask=there)
            if not CAUSAL:
                running += tl.sum(z, 0)
        total = running


@triton.jit
def backward_kernel(
    g_ptr, p_ptr, c_ptr, u, iterations, p_line, p_slot, c_line, c_slot,
    ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """g, in place: from the gradient of the last p to that of the scores; iterations >= 1."""
    line = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    p_base, c_base, g_base = p_ptr + line * p_line, c_ptr + line * c_line, g_ptr + line * u * u
    owed = tl.zeros([COLS], tl.float32)
    later = tl.full([COLS], 1.0, tl.float32)  # column sums of the iteration after
    for step in range(0, iterations):
        it = iterations - 1 - step
        tl.debug_barrier()
        running = tl.zeros([COLS], tl.float32)
        if not CAUSAL:
            total = tl.load(c_base + it * c_slot + j, mask=j < u, other=1.0)
        for first in range(0, u, ROWS):
            rows = u - 1 - first - i
            at = rows[:, None] * u + j[None, :]
            there = (rows[:, None] >= 0) & (j[None, :] < u)
            p = tl.load(p_base + it * p_slot + at, mask=there, other=0.0)
            if CAUSAL:
                c = tl.load(c_base + it * c_slot + at, mask=there, other=1.0)
            else:
                c = total[None, :]
            y = p / c
            z = y / _whole(tl.sum(y, 1), TINY)[:, None]
            h = tl.load(g_base + at, mask=there, other=0.0)
            h = tl.where(step == 0, h * z, h - z / later[None, :] * owed[None, :])
            h = h - z * tl.sum(h, 1)[:, None]
            if CAUSAL:
                passed = h / c
                h = h - p * (running[None, :] + tl.cumsum(passed, 0))
                running += tl.sum(passed, 0)
            else:
                running += tl.sum(h, 0)
            tl.store(g_base + at, h, mask=there)
        if not CAUSAL:
            owed, later = running, total
    tl.debug_barrier()
    for first in range(0, u, ROWS):
        rows = first + i
        at = rows[:, None] * u + j[None, :]
        there = (rows[:, None] < u) & (j[None, :] < u)
        p = tl.load(p_base + at, mask=there, other=0.0)
        h = tl.load(g_base + at, mask=there, other=0.0) - p / later[None, :] * owed[None, :]
        tl.store(g_base + at, h - p * tl.sum(h, 1)[:, None], mask=there)

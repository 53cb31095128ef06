# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels of recurrences: a program walks over the tokens of a row with some channels.

The linear one takes a tile of tokens at a time, by an associative scan; the others take one token
after another. All fetch what comes next while they compute. Strides are those of (b, n, c) tensors
whose last axis is contiguous; states are written contiguously. All is float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _join(a, b, next_a, next_b):
    """Two neighbouring runs of h ← a·h + b as one."""
    return a * next_a, next_a * b + next_b


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def linear_kernel(
    a_ptr, b_ptr, start_ptr, h_ptr, a_b, a_n, b_b, b_n, n, c,
    TIME: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """h_t = a_t · h_(t−1) + b_t; BACK: h_t = a_(t+1) · h_(t+1) + b_t, from the last token on."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, TIME)
    at = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    held = at < c
    carry = tl.load(start_ptr + row * c + at, mask=held, other=0.0)
    for first in tl.range(0, n, TIME, num_stages=STAGES):
        t = first + i
        of_a = t
        if BACK:
            t = n - 1 - t
            of_a = t + 1
        there = (t[:, None] >= 0) & (t[:, None] < n) & held[None, :]
        a_there = there & (of_a[:, None] < n)
        a_at = a_ptr + row * a_b + of_a[:, None].to(tl.int64) * a_n + at[None, :]
        b_at = b_ptr + row * b_b + t[:, None].to(tl.int64) * b_n + at[None, :]
        a = tl.load(a_at, mask=a_there, other=0.0)
        b = tl.load(b_at, mask=there, other=0.0)
        a, b = tl.associative_scan((a, b), 0, _join)
        h = a * carry[None, :] + b
        tl.store(h_ptr + (row * n + t[:, None]) * c + at[None, :], h, mask=there)
        carry = tl.sum(tl.where(i[:, None] == TIME - 1, h, 0.0), 0)


@triton.jit
def sru_kernel(
    new_ptr, f_ptr, w_ptr, start_ptr, h_ptr, new_b, new_n, f_b, f_n, n, c,
    CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h_t = f h + (1 − f) new_t,  f = σ(f_t + w h),  h = h_(t−1)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    held = at < c
    w = tl.load(w_ptr + at, mask=held, other=0.0)
    h = tl.load(start_ptr + row * c + at, mask=held, other=0.0)
    new_at, f_at = new_ptr + row * new_b + at, f_ptr + row * f_b + at
    h_at = h_ptr + row * n * c + at
    for _ in tl.range(0, n, num_stages=STAGES):
        new = tl.load(new_at, mask=held, other=0.0)
        f = tl.load(f_at, mask=held, other=0.0)
        h = new + _sigmoid(f + w * h) * (h - new)
        tl.store(h_at, h, mask=held)
        new_at, f_at, h_at = new_at + new_n, f_at + f_n, h_at + c


@triton.jit
def brc_kernel(
    gates_ptr, new_ptr, w_ptr, start_ptr, h_ptr, gates_b, gates_n, new_b, new_n, n, c,
    CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h_t = g h + (1 − g) tanh(new_t + h + tanh(a_t + w_a h) h),  g = σ(c_t + w_c h)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    held = at < c
    w_a = tl.load(w_ptr + at, mask=held, other=0.0)
    w_c = tl.load(w_ptr + c + at, mask=held, other=0.0)
    h = tl.load(start_ptr + row * c + at, mask=held, other=0.0)
    gates_at, new_at = gates_ptr + row * gates_b + at, new_ptr + row * new_b + at
    h_at = h_ptr + row * n * c + at
    for _ in tl.range(0, n, num_stages=STAGES):
        a = tl.load(gates_at, mask=held, other=0.0)
        g = tl.load(gates_at + c, mask=held, other=0.0)
        new = tl.load(new_at, mask=held, other=0.0)
        gate = _sigmoid(g + w_c * h)
        settled = _tanh(new + h + _tanh(a + w_a * h) * h)
        h = settled + gate * (h - settled)
        tl.store(h_at, h, mask=held)
        gates_at, new_at, h_at = gates_at + gates_n, new_at + new_n, h_at + c

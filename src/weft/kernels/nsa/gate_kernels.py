"""Triton kernels of three gated branches: one pass over what they say, one over its gradient.

A row is one head of one token; rows stand in the order (b, n, h), as a projection reads them.
Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(heads, n, total, ROWS: tl.constexpr):
    """Rows of this program: number, batch row, head, token, place of the first gate, which live."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, h = row // heads, (row % heads).to(tl.int64)
    b, i = (token // n).to(tl.int64), (token % n).to(tl.int64)
    return row.to(tl.int64), b, h, i, token.to(tl.int64) * 3 * heads + h, row < total


@triton.jit
def _load(ptr, b, h, i, s_b, s_h, s_n, live, WIDTH: tl.constexpr):
    at = (b * s_b + h * s_h + i * s_n)[:, None] + tl.arange(0, WIDTH)[None, :]
    return tl.load(ptr + at, mask=live[:, None], other=0).to(tl.float32)


@triton.jit
def _gate(ptr, at, live):
    return tl.sigmoid(tl.load(ptr + at, mask=live, other=0).to(tl.float32))


@triton.jit
def forward_kernel(
    gate_ptr, x_ptr, y_ptr, z_ptr, out_ptr,
    x_b, x_h, x_n, y_b, y_h, y_n, z_b, z_h, z_n, heads, n, total,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Σ sigmoid(gate) · branch of ROWS rows."""
    row, b, h, i, at, live = _rows(heads, n, total, ROWS)
    out = _gate(gate_ptr, at, live)[:, None] * _load(x_ptr, b, h, i, x_b, x_h, x_n, live, WIDTH)
    gate = _gate(gate_ptr, at + heads, live)
    out += gate[:, None] * _load(y_ptr, b, h, i, y_b, y_h, y_n, live, WIDTH)
    gate = _gate(gate_ptr, at + 2 * heads, live)
    out += gate[:, None] * _load(z_ptr, b, h, i, z_b, z_h, z_n, live, WIDTH)
    out_at = out_ptr + row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def _back(gate_ptr, dgate_ptr, dx_ptr, at, row, x, dout, live, WIDTH: tl.constexpr):
    """The gradients of one branch and its gates."""
    gate = _gate(gate_ptr, at, live)
    slope = tl.sum(x * dout, 1) * gate * (1.0 - gate)
    tl.store(dgate_ptr + at, slope.to(dgate_ptr.dtype.element_ty), mask=live)
    dx_at = dx_ptr + row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(dx_at, (dout * gate[:, None]).to(dx_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def backward_kernel(
    gate_ptr, x_ptr, y_ptr, z_ptr, dout_ptr, dgate_ptr, dx_ptr, dy_ptr, dz_ptr,
    x_b, x_h, x_n, y_b, y_h, y_n, z_b, z_h, z_n, heads, n, total,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of gates and branches of ROWS rows, from that of the sum."""
    row, b, h, i, at, live = _rows(heads, n, total, ROWS)
    dout_at = dout_ptr + row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    dout = tl.load(dout_at, mask=live[:, None], other=0).to(tl.float32)
    x = _load(x_ptr, b, h, i, x_b, x_h, x_n, live, WIDTH)
    _back(gate_ptr, dgate_ptr, dx_ptr, at, row, x, dout, live, WIDTH)
    y = _load(y_ptr, b, h, i, y_b, y_h, y_n, live, WIDTH)
    _back(gate_ptr, dgate_ptr, dy_ptr, at + heads, row, y, dout, live, WIDTH)
    z = _load(z_ptr, b, h, i, z_b, z_h, z_n, live, WIDTH)
    _back(gate_ptr, dgate_ptr, dz_ptr, at + 2 * heads, row, z, dout, live, WIDTH)

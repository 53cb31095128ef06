# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernel of dropout and a residual in one pass."""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.dropout_kernels import _mixed


@triton.jit
def dropout_add_kernel(
    seed_ptr, y_ptr, x_ptr, out_ptr, count, threshold, grow, BLOCK: tl.constexpr, ADDS: tl.constexpr
):
    """out = x + y · grow where kept; without `ADDS`, of y alone: the gradient."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    seed = _mixed(tl.load(seed_ptr).to(tl.uint32, bitcast=False))
    number = _mixed(at.to(tl.uint32, bitcast=False) ^ seed)
    y = tl.load(y_ptr + at, mask=inside, other=0).to(tl.float32)
    out = tl.where(number >= threshold.to(tl.uint32, bitcast=False), y * grow, 0.0)
    if ADDS:
        out += tl.load(x_ptr + at, mask=inside, other=0).to(tl.float32)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)

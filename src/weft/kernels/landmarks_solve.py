"""Solving with the attention among landmarks by two Triton kernels, one for each direction.

What is small waits for its calls on a GPU: six iterations and their gradients are some hundred of
them, and here one program does them all for one matrix. `landmarks.solve` is the same, plainly.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse import WIDTHS

MOST = 64  # landmarks whose matrices one program holds
WARPS = 4
PRECISION = "tf32x3"  # three products on tensor cores, as exact as float32; or "ieee"


def can_solve(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels take these (b, h, r, d): half precision on a GPU, few landmarks."""
    same = q.dtype == k.dtype == v.dtype and v.dtype in (torch.float16, torch.bfloat16)
    fits = q.shape[-1] == v.shape[-1] in WIDTHS and 0 < q.shape[2] <= MOST
    return q.is_cuda and same and fits and not torch.compiler.is_compiling()


def fused_solve(q: Tensor, k: Tensor, v: Tensor, counts: Tensor, iterations: int) -> Tensor:
    """Z v (b, h, r, d), Z ≈ softmax(q kᵀ/√d)⁺ among the first `counts` (b,) landmarks."""
    return _Solve.apply(q, k, v, counts, iterations)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, iterations: int
    ) -> Tensor:
        from weft.kernels.landmarks_solve_triton import solve_kernel

        q, k, v = (x.contiguous() for x in (q, k, v))
        grid, sizes, scale, settings = _plan(q, iterations)
        z = q.new_empty(iterations + 1, *grid, *2 * [settings["R"]], dtype=torch.float32)
        out = torch.empty_like(v)
        solve_kernel[grid](q, k, v, counts, z, out, *sizes, scale * math.log2(math.e), **settings)
        ctx.save_for_backward(q, k, v, counts, z)
        ctx.iterations = iterations
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.landmarks_solve_triton import solve_back_kernel

        q, k, v, counts, z = ctx.saved_tensors
        grid, sizes, scale, settings = _plan(q, ctx.iterations)
        found = [torch.empty_like(x) for x in (q, k, v)]
        tensors, scales = (
            (q, k, v, counts, z, grad.contiguous()),
            (scale * math.log2(math.e), scale),
        )
        solve_back_kernel[grid](*tensors, *found, *sizes, *scales, **settings)
        return *found, None, None


def _plan(
    q: Tensor, iterations: int
) -> tuple[tuple[int], tuple[int, ...], float, dict[str, int | str]]:
    """Grid, sizes, scale and settings: one program per matrix."""
    b, h, r, d = q.shape
    room = max(16, 1 << (r - 1).bit_length())
    settings = {"R": room, "D": d, "EXACT": PRECISION, "num_warps": WARPS, "num_stages": 1}
    return (b * h,), (h, r, iterations), d**-0.5, settings

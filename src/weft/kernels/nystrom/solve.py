"""Solving with the attention among landmarks by two Triton kernels, one for each direction.

Small matrices are bound by launches on a GPU: six iterations and their gradients are some hundred
of them; here one program does all for one matrix. `reference.solve` is the same in plain torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.launch import on_grid
from weft.kernels.planner.fast import HALF, FastKernel, Rule

MOST = 64  # landmarks whose matrices one program holds
WARPS = 4
PRECISION = "tf32x3"  # three products on tensor cores, as exact as float32; or "ieee"


FUSED = FastKernel("landmarks: solve", dtypes=HALF)


def can_solve(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels take these landmarks (b, h, r, d)."""
    r, d, e = q.shape[2], q.shape[-1], v.shape[-1]
    rules = (
        Rule(d == e and d in WIDTHS, TAKES_WIDTHS, (d, e)),
        Rule(0 < r <= MOST, "takes up to 64 landmarks", r),
    )
    return FUSED.takes(q, k, v, rules=rules)


def fused_solve(q: Tensor, k: Tensor, v: Tensor, counts: Tensor, iterations: int) -> Tensor:
    """Z v (b, h, r, d), Z ≈ softmax(q kᵀ/√d)⁺ among the first `counts` (b,) landmarks."""
    return _Solve.apply(q, k, v, counts, iterations)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, iterations: int
    ) -> Tensor:
        from weft.kernels.nystrom.solve_kernels import solve_kernel

        q, k, v = (x.contiguous() for x in (q, k, v))
        grid, sizes, scale, settings = _plan(q, iterations)
        z = q.new_empty(iterations + 1, *grid, *2 * [settings["R"]], dtype=torch.float32)
        out = torch.empty_like(v)
        on_grid(solve_kernel, grid)(
            q, k, v, counts, z, out, *sizes, scale * math.log2(math.e), **settings
        )
        ctx.save_for_backward(q, k, v, counts, z)
        ctx.iterations = iterations
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.nystrom.solve_kernels import solve_back_kernel

        q, k, v, counts, z = ctx.saved_tensors
        grid, sizes, scale, settings = _plan(q, ctx.iterations)
        found = [torch.empty_like(x) for x in (q, k, v)]
        tensors, scales = (
            (q, k, v, counts, z, grad.contiguous()),
            (scale * math.log2(math.e), scale),
        )
        on_grid(solve_back_kernel, grid)(*tensors, *found, *sizes, *scales, **settings)
        return *found, None, None


def _plan(q: Tensor, iterations: int) -> tuple[tuple[int], tuple[int, ...], float, dict[str, Any]]:
    """Grid, sizes, scale and settings: one program per matrix."""
    b, h, r, d = q.shape
    room = max(16, 1 << (r - 1).bit_length())
    settings = {"R": room, "D": d, "EXACT": PRECISION, "num_warps": WARPS, "num_stages": 1}
    return (b * h,), (h, r, iterations), d**-0.5, settings

"""Sums over weighted neighbours by our own kernels: out_i = Σ_s taps_is · x_(i + s − before).

`band.tap_sum` is the same in plain PyTorch, and uses these where it can. Nothing of the size
n × taps is written, except the gradient of taps that differ from token to token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.launch import on_grid, strides, unit_stride
from weft.kernels.planner.fast import HALF, FastKernel, Rule

WIDEST = 128  # channels of a head, at most
ROWS, STEP = 64, 32  # of one block of sums: tokens, and tokens that it reads at a time
WARPS, STAGES = 4, 2
GRADIENT_STEP = 64  # the step of the gradients of taps
_PROGRAMS = 528  # runs of rows in the gradient of shared taps: four for each processor of an H200


FUSED = FastKernel("convolution", dtypes=(*HALF, torch.float32))


def can_fuse(x: Tensor, taps: Tensor) -> bool:
    """Whether the kernels take x (b, h, n, d) and its taps."""
    width = Rule(x.shape[-1] <= WIDEST, "takes heads up to 128 wide", x.shape[-1])
    return FUSED.takes(x, taps, rules=(width, Rule(x.numel() > 0, "takes one token or more")))


def fused_tap_sum(x: Tensor, taps: Tensor, before: int) -> Tensor:
    """x (b, h, n, d), taps (b, h, n, t) or (1, h, 1, t) -> (b, h, n, d)."""
    return _TapSum.apply(x, taps, before)


class _TapSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, before: int) -> Tensor:
        x, taps = (unit_stride(y) for y in (x, taps))
        ctx.save_for_backward(x, taps)
        ctx.before = before
        return _sums(x, taps, before, mirror=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, taps = ctx.saved_tensors
        grad = unit_stride(grad)
        wanted, dx, dtaps = ctx.needs_input_grad, None, None
        if wanted[0]:
            dx = _sums(grad, taps, ctx.before, mirror=True)
        if wanted[1]:
            gradient = _shared_gradient if taps.shape[2] == 1 else _varied_gradient
            dtaps = gradient(x, grad, taps, ctx.before)
        return dx, dtaps, None


def _sums(x: Tensor, taps: Tensor, before: int, *, mirror: bool) -> Tensor:
    from weft.kernels.convolution.kernels import sum_kernel

    b, h, n, d = x.shape
    varies, count = taps.shape[2] > 1, taps.shape[3]
    taps = taps.expand(b, h, -1, -1)
    out = x.new_empty(b, n, h, d).transpose(1, 2)  # memory (b, n, h, d): what a projection reads
    sizes = (*strides(x, taps, out), h, n, d, count, before)
    kinds = {"VARIES": varies, "MIRROR": mirror}
    grid = (b * h, -(-n // ROWS))
    on_grid(sum_kernel, grid)(x, taps, out, *sizes, STEP=STEP, **kinds, **_settings(d))
    return out


def _varied_gradient(x: Tensor, grad: Tensor, taps: Tensor, before: int) -> Tensor:
    from weft.kernels.convolution.kernels import varied_gradient_kernel

    b, h, n, d = x.shape
    dtaps = taps.new_empty(b, h, *taps.shape[2:])
    sizes = (*strides(x, grad, dtaps), h, n, d, taps.shape[3], before)
    grid = (b * h, -(-n // ROWS))
    on_grid(varied_gradient_kernel, grid)(
        x, grad, dtaps, *sizes, STEP=GRADIENT_STEP, **_settings(d)
    )
    return dtaps.sum_to_size(taps.shape)


def _shared_gradient(x: Tensor, grad: Tensor, taps: Tensor, before: int) -> Tensor:
    from weft.kernels.convolution.kernels import shared_gradient_kernel

    (b, h, n, d), count = x.shape, taps.shape[3]
    steps, blocks = -(-(ROWS + count - 1) // GRADIENT_STEP), -(-n // ROWS)
    runs = min(blocks, max(1, _PROGRAMS // (b * h * steps)))
    segment = -(-blocks // runs) * ROWS
    grid = (b * h, -(-n // segment), steps)
    sums = x.new_empty(b, h, grid[1] * steps, count, dtype=torch.float32)
    sizes = (*strides(x, grad), h, n, d, count, before, segment)
    on_grid(shared_gradient_kernel, grid)(x, grad, sums, *sizes, STEP=GRADIENT_STEP, **_settings(d))
    return sums.sum(2, keepdim=True).sum_to_size(taps.shape).to(taps.dtype)


def _settings(width: int) -> dict[str, int]:
    wide = max(16, 1 << (width - 1).bit_length())
    return {"ROWS": ROWS, "WIDTH": wide, "num_warps": WARPS, "num_stages": STAGES}

"""Three branches of attention joined by gates: y = Σ_a sigmoid(g_a) · branch_a, per head.

On a GPU one kernel reads all three, and one writes all gradients; elsewhere plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.launch import strides, unit_stride
from weft.kernels.planner.fast import HALF, FastKernel, Rule

ROWS = 64  # heads of tokens that a program takes
WARPS = 4


FUSED = FastKernel("gates of branches", dtypes=(*HALF, torch.float32), graph=True)


def can_fuse(branches: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Whether the kernels take branches (b, h, n, d)."""
    width = branches[0].shape[-1]
    return FUSED.takes(*branches, rules=(Rule(width in WIDTHS, TAKES_WIDTHS, width),))


def gated_sum(gates: Tensor, branches: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Gates before the sigmoid (b, n, 3h), branches (b, h, n, d) -> (b, n, h·d)."""
    if can_fuse(branches):
        return _Gated.apply(gates, *branches)
    parts = torch.sigmoid(gates)[..., None].chunk(3, dim=2)  # (b, n, h, 1)
    first, *rest = (g * y.transpose(1, 2) for g, y in zip(parts, branches, strict=True))
    return sum(rest, first).flatten(2)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        from weft.kernels.nsa.gate_kernels import forward_kernel

        gates = gates.contiguous()
        x, y, z = (unit_stride(t) for t in (x, y, z))
        b, h, n, d = x.shape
        out = x.new_empty(b, n, h * d)
        _launch(forward_kernel, (gates, x, y, z, out), (x, y, z))
        ctx.save_for_backward(gates, x, y, z)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        from weft.kernels.nsa.gate_kernels import backward_kernel

        gates, x, y, z = ctx.saved_tensors
        b, h, n, d = x.shape
        dx, dy, dz = (x.new_empty(b, n, h, d).transpose(1, 2) for _ in range(3))
        dgates = torch.empty_like(gates)
        tensors = (gates, x, y, z, dout.contiguous(), dgates, dx, dy, dz)
        _launch(backward_kernel, tensors, (x, y, z))
        return dgates, dx, dy, dz


def _launch(kernel: Any, tensors: tuple[Tensor, ...], branches: tuple[Tensor, ...]) -> None:
    b, h, n, d = branches[0].shape
    total = b * n * h
    kernel[(-(-total // ROWS),)](
        *tensors, *strides(*branches), h, n, total, ROWS=ROWS, WIDTH=d, num_warps=WARPS
    )

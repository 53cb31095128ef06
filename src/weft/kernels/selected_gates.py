"""Three branches of attention joined by gates: y = Σ_a sigmoid(g_a) · branch_a, per head.

On a GPU one kernel reads all three, and one writes all gradients; elsewhere plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse import WIDTHS

ROWS = 64  # heads of tokens that a program takes
WARPS = 4


def can_fuse(gates: Tensor, branches: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Whether the kernels take these: on a GPU, widths that are powers of two."""
    first = branches[0]
    same = all(branch.dtype == first.dtype != torch.float64 for branch in branches)
    return gates.is_cuda and same and first.shape[-1] in WIDTHS


def gated_sum(gates: Tensor, branches: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Gates before the sigmoid (b, n, 3h), branches (b, h, n, d) -> (b, n, h·d)."""
    if can_fuse(gates, branches):
        return _Gated.apply(gates, *branches)
    parts = torch.sigmoid(gates)[..., None].chunk(3, dim=2)  # (b, n, h, 1)
    each = zip(parts, branches, strict=True)
    return sum(gate * branch.transpose(1, 2) for gate, branch in each).flatten(2)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        from weft.kernels.selected_gates_triton import forward_kernel

        gates = gates.contiguous()
        x, y, z = (t if t.stride(-1) == 1 else t.contiguous() for t in (x, y, z))
        b, h, n, d = x.shape
        out = x.new_empty(b, n, h * d)
        _launch(forward_kernel, (gates, x, y, z, out), (x, y, z))
        ctx.save_for_backward(gates, x, y, z)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        from weft.kernels.selected_gates_triton import backward_kernel

        gates, x, y, z = ctx.saved_tensors
        b, h, n, d = x.shape
        dx, dy, dz = (x.new_empty(b, n, h, d).transpose(1, 2) for _ in range(3))
        dgates = torch.empty_like(gates)
        tensors = (gates, x, y, z, dout.contiguous(), dgates, dx, dy, dz)
        _launch(backward_kernel, tensors, (x, y, z))
        return dgates, dx, dy, dz


def _launch(kernel: Any, tensors: tuple[Tensor, ...], branches: tuple[Tensor, ...]) -> None:
    b, h, n, d = branches[0].shape
    strides = [x.stride(axis) for x in branches for axis in (0, 1, 2)]
    total = b * n * h
    kernel[(-(-total // ROWS),)](
        *tensors, *strides, h, n, total, ROWS=ROWS, WIDTH=d, num_warps=WARPS
    )

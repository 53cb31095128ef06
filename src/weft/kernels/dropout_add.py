"""A residual with dropout, x + dropout(y), that stores a seed instead of a mask.

On a GPU one kernel reads x and y and writes the sum; backward it draws the same numbers again. On a
CPU it is torch's dropout. The rate is exact to 2⁻³².
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.launch import on_grid

_BLOCK = 1024  # numbers of one program


def dropout_add(y: Tensor, x: Tensor, rate: float, training: bool = True) -> Tensor:
    """x + dropout(y), both (..., c)."""
    if not rate or not training:
        return x + y
    same = y.dtype == x.dtype and y.shape == x.shape
    if y.is_cuda and same and 0 < rate < 1 and not torch.compiler.is_compiling():
        return DropoutAdd.apply(y, x, rate)
    return x + F.dropout(y, rate)


class DropoutAdd(torch.autograd.Function):
    """The kernel, and its gradient by the same seed."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, rate: float) -> Tensor:
        # On the device, so that a CUDA graph draws again at every replay.
        seed = torch.randint(0, 2**31 - 1, (1,), device=y.device)
        ctx.save_for_backward(seed)
        ctx.rate = rate
        return _run(seed, y, x, rate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, None]:
        return _run(ctx.saved_tensors[0], dout, None, ctx.rate), dout, None


def _run(seed: Tensor, y: Tensor, x: Tensor | None, rate: float) -> Tensor:
    from weft.kernels.dropout_add_kernels import dropout_add_kernel

    y = y.contiguous()
    out, other = torch.empty_like(y), y if x is None else x.contiguous()
    grid = (-(-y.numel() // _BLOCK),)
    threshold, grow = int(rate * 2**32), 1 / (1 - rate)
    settings = {"BLOCK": _BLOCK, "ADDS": x is not None}
    on_grid(dropout_add_kernel, grid)(seed, y, other, out, y.numel(), threshold, grow, **settings)
    return out

"""Products of groups of rows, each group with a matrix of its own.

    y[i] = x[i] W_e   for ends[e − 1] <= i < ends[e];   rows from ends[-1] on are undefined

In bfloat16 on a GPU this is torch's grouped kernel: one launch, nothing waits for the host. Other
numbers, other devices and widths that are not a multiple of 16 bytes run through an operator of our
own, group by group; on a GPU that reads `ends`, so the host waits. Either compiles into one graph.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from weft.kernels.planner.fast import FastKernel, Rule

# Public from torch 2.10 on.
_grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]
GROUPED = FastKernel(
    "products of experts", (torch.bfloat16,), kernel="grouped", plain="one by one", graph=True
)


def ragged_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x (p, c), weight (e, c, h), ends (e,) int32 -> (p, h)."""
    width, (_, c, h) = 16 // x.element_size(), weight.shape
    whole = Rule(not (c % width or h % width), "takes widths of a multiple of 16 bytes", (c, h))
    if GROUPED.takes(x, weight, rules=(whole,)):
        return _grouped_mm(x, weight, offs=ends)
    return _ragged(x, weight, ends)


@torch.library.custom_op("weft::ragged_matmul", mutates_args=())
def _ragged(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The product, group by group."""
    y = x.new_zeros(len(x), weight.shape[2])
    for e, (start, end) in _groups(ends):
        torch.mm(x[start:end], weight[e], out=y[start:end])
    return y


@_ragged.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op("weft::ragged_outer", mutates_args=())
def _outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """x (p, c), y (p, h) -> sums over each group of x[i]ᵀ y[i]: (e, c, h)."""
    out = x.new_zeros(len(ends), x.shape[1], y.shape[1])
    for e, (start, end) in _groups(ends):
        torch.mm(x[start:end].t(), y[start:end], out=out[e])
    return out


@_outer.register_fake
def _(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], y.shape[1])


def _groups(ends: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """The number and the span of every group that has rows."""
    edges = [0, *ends.tolist()]
    spans = enumerate(pairwise(edges))
    return [(e, (start, end)) for e, (start, end) in spans if end > start]


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, ends = ctx.saved_tensors
    grad = grad.contiguous()
    dx = _ragged(grad, weight.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
    dweight = _outer(x, grad, ends) if ctx.needs_input_grad[1] else None
    return dx, dweight, None


_ragged.register_autograd(_backward, setup_context=_setup)


@register_flop_formula(torch.ops.weft.ragged_matmul)
def _flops(x: Any, weight: Any, *rest: Any, **given: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]

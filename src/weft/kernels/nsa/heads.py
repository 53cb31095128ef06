"""Queries and three sets of keys and values as one product; one kernel joins their gradients.

Queries come twice, for branches that turn them and for those that do not: the two gradients are
added where they are joined. The same pass adds up what the bias receives.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.launch import on_grid, strides, unit_stride
from weft.kernels.planner.fast import HALF, FastKernel, Rule

LEAST = 1024  # tokens that make one wide product faster than two
ROWS, WARPS = 64, 4  # tokens of a head that a program takes


FUSED = FastKernel("projections of branches", dtypes=(*HALF, torch.float32), graph=True)


def can_join(x: Tensor, width: int) -> bool:
    """Whether one wide product of x (b, n, c) pays, and the kernel takes heads of this width."""
    tokens = x.shape[0] * x.shape[1]
    rules = (
        Rule(tokens >= LEAST, "pays from 1024 tokens on", tokens),
        Rule(not torch.is_autocast_enabled("cuda"), "does not run under autocast"),
        Rule(width in WIDTHS, TAKES_WIDTHS, width),
    )
    return FUSED.takes(x, rules=rules)


def joint_heads(
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor, Tensor] | None,
    heads: int,
    key_heads: int,
) -> tuple[Tensor, ...]:
    """x (b, n, c) -> q twice (b, h, n, d), then k, v, k, v, k, v (b, g, n, d).

    The first k and v are copies, heads first. The weights are (h·d, c) and (6·g·d, c).
    """
    bias = None if biases is None else torch.cat(biases)
    return _Heads.apply(x, torch.cat(weights), bias, heads, key_heads)


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, heads: int, key_heads: int
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.biased, ctx.heads = bias is not None, (heads, key_heads)
        y = F.linear(x, weight, bias).unflatten(-1, (heads + 6 * key_heads, -1)).transpose(1, 2)
        q, k, v, *others = y.split((heads, *[key_heads] * 6), dim=1)
        return q, q.view_as(q), _heads_first(k), _heads_first(v), *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (heads, key_heads) = ctx.saved_tensors, ctx.heads
        joint, dbias = _side_by_side(grads, heads, key_heads, ctx.biased)  # (b·n, widths)
        dx = (joint @ weight).view_as(x) if ctx.needs_input_grad[0] else None
        return dx, joint.t() @ x.flatten(0, 1), dbias, None, None


def _heads_first(x: Tensor) -> Tensor:
    """A copy (b, g, n, d) with heads first: compression reads the tokens of a head in a row.

    Eight bytes at a time: torch copies as many numbers a second whatever their size.
    """
    return x.view(torch.int64).contiguous().view(x.dtype)


def _side_by_side(
    grads: tuple[Tensor, ...], heads: int, key_heads: int, biased: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients (b, h or g, n, d) as one (b·n, widths), and its sum over tokens if `biased`."""
    from weft.kernels.nsa.head_kernels import side_by_side_kernel

    grads = tuple(unit_stride(x) for x in grads)
    b, _, n, d = grads[0].shape
    columns, tiles = heads + 6 * key_heads, -(-b * n // ROWS)
    out = grads[0].new_empty(b * n, columns * d)
    sums = out.new_empty(tiles if biased else 0, columns * d, dtype=torch.float32)
    on_grid(side_by_side_kernel, (tiles * columns,))(
        *grads, out, *strides(*grads), sums, heads, key_heads, n, b * n,
        ROWS=ROWS, WIDTH=d, SUMS=biased, num_warps=WARPS,
    )  # fmt: skip
    return out, sums.sum(0).to(out.dtype) if biased else None

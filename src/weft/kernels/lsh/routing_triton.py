"""Attention inside clusters of equal size by the kernels that gather inside themselves.

Places of a line are the members of its clusters, one cluster after another, and a place reads its
cluster. A token's result is the mean over its places, 0 if it has none. `clusters.py` is the same,
in plain PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.adjacent import empty_like_heads
from weft.kernels.dropout import Dropout
from weft.kernels.launch import unit_stride
from weft.kernels.lsh.triton import GatherLaunch, Runs, sort_lines


@dataclass(frozen=True, kw_only=True)
class Members:
    """Who is in which cluster, by place and by token."""

    runs: Runs  # places: clusters · size
    index: Tensor  # places of all lines, sorted by token
    start: Tensor  # (b, h, n + 1) with one more at the end: where a token's places begin in it
    found: Tensor  # (b, h, n): in how many clusters it is, at least 1


def members_of(near: Tensor, length: Tensor, size: Tensor | None, most: int) -> Members:
    """Cosines (b, h, s, n), −inf for padding -> each cluster's `size` (b,) nearest tokens.

    At most as many as `length` (b,) has; `most` bounds `size`. None: all take `most`, and no token
    is padding.
    """
    (b, h, _, n), token = near.shape, near.topk(most).indices
    if size is not None:
        taken = torch.minimum(size, length)[:, None, None, None]  # (b, 1, 1, 1)
        token = torch.where(torch.arange(most, device=near.device) < taken, token, n)
    token = token.flatten(2)  # (b, h, p)
    keys, index = sort_lines(token, n + 1)
    every = torch.arange(b * h * (n + 1) + 1, device=near.device, dtype=keys.dtype)
    start = torch.searchsorted(keys, every, out_int32=True)
    found = start.diff().view(b, h, n + 1)[..., :n].clamp(min=1)
    token = token.to(torch.int32)[:, :, None]
    runs = Runs(token=token, length=length, chunk=most, lookback=0, several=True)
    return Members(runs=runs, index=index, start=start, found=found)


def attend_members(
    x: Tensor, v: Tensor, members: Members, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """x (b, h, n, d), v (b, g, n, d) -> (b, h, n, d); alone in its cluster, a token returns v."""
    return _RoutingAttention.apply(x, v, members, scale, Dropout.of(dropout, x.device))


class _RoutingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, v: Tensor, members: Members, scale: float, drop: Dropout | None
    ) -> Tensor:
        from weft.kernels.lsh.routing_kernels import mean_kernel

        x, v = (unit_stride(y) for y in (x, v))
        launch = GatherLaunch(x, v, members.runs, scale, drop)
        norm = launch.norms(0.0)
        part, lse = launch.forward(norm)
        out = launch.like_heads()
        tensors = (part, lse, v, members.index, members.start, out)
        launch.once(mean_kernel, tensors, (v, out), _sizes(x, v))
        ctx.save_for_backward(x, v, part, lse, norm)
        ctx.given = (members, scale, drop)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.lsh.routing_kernels import sum_kernel
        from weft.kernels.lsh.row_kernels import delta_kernel

        x, v, part, lse, norm = ctx.saved_tensors
        members, scale, drop = ctx.given
        runs = members.runs
        share = dout / members.found.to(dout.dtype)[..., None]
        share = unit_stride(share)
        launch, delta = GatherLaunch(x, v, runs, scale, drop), torch.empty_like(lse)
        part = part.view(*x.shape[:2], *part.shape[1:])  # (b, h, p, w)
        tensors, sizes = (part, share, runs.token, runs.length, delta), (x.shape[1], part.shape[2])
        launch.once(delta_kernel, tensors, (part, share), sizes, lines=part, BY_PLACE=True)
        parts = launch.backward(share, norm, lse, delta)
        dx, dv = empty_like_heads((x, v))
        tensors = (*parts, lse, share, members.index, members.start, dx, dv)
        launch.once(sum_kernel, tensors, (share, dx, dv), _sizes(x, v), lines=v)
        return dx, dv, None, None, None


def _sizes(x: Tensor, v: Tensor) -> tuple[int, int, int]:
    """Query heads, query heads per value head, tokens."""
    return x.shape[1], x.shape[1] // v.shape[1], x.shape[2]

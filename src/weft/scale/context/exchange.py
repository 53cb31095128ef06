"""What ranks send each other, and a count of the bytes: two exchanges, each with its gradient.

    move   chosen rows of a tensor go to chosen ranks; gradients go back and add up
    sum    the sum of a tensor over all ranks; its gradient is the sum of all gradients

Both are torch's own collectives (`all_to_all_single`, `all_reduce`). Bytes are counted as they are
handed over to others: what stays on the rank costs nothing. A sum counts as the ring that backends
run: each rank sends 2·(ranks − 1) pieces of ⌈numbers / ranks⌉.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.planner.context import outside_graphs
from weft.scale.context.bill import reduced

Way = Literal["forward", "backward"]


@dataclass
class Sent:
    """Bytes that one rank has handed over."""

    forward: int = 0
    backward: int = 0

    def add(self, way: Way, count: int) -> None:
        """Count bytes of one exchange."""
        setattr(self, way, getattr(self, way) + count)

    def reset(self) -> None:
        """Count from 0 again."""
        self.forward = self.backward = 0


class Exchange:
    """The exchanges of one group of ranks."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.sent = Sent()

    @outside_graphs
    def move(self, x: Tensor, sends: Sequence[Tensor | None], receives: Sequence[int]) -> Tensor:
        """Rows of x (..., s, d) at the indices for each rank -> what came, by rank: (..., r, d).

        None sends nothing; `receives` says how many rows come from each rank.
        """
        rows = x.movedim(-2, 0)
        sizes = [0 if index is None else len(index) for index in sends]
        given = [index for index in sends if index is not None]
        index = torch.cat(given) if given else torch.zeros(0, dtype=torch.long)
        index = index.to(x.device)
        flat = rows.flatten(1)
        if x.dtype == torch.bool:
            came = self.swap(flat.to(torch.uint8)[index], sizes, receives, "forward").bool()
        elif x.is_floating_point():
            came = _Move.apply(flat, index, sizes, list(receives), self)
        else:
            came = self.swap(flat[index], sizes, receives, "forward")
        return came.reshape(sum(receives), *rows.shape[1:]).movedim(0, -2)

    @outside_graphs
    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks."""
        return _Sum.apply(x, self)

    @outside_graphs
    def largest(self, x: Tensor) -> Tensor:
        """The largest over all ranks, number by number; without a gradient."""
        return self.reduce(x.detach(), dist.ReduceOp.MAX, "forward")

    def swap(self, rows: Tensor, sizes: Sequence[int], receives: Sequence[int], way: Way) -> Tensor:
        """Rows (r, w), split by `sizes`, to each rank; what comes, in the order of the ranks."""
        away = sum(sizes) - sizes[self.rank]
        self.sent.add(way, away * rows[:1].numel() * rows.element_size() if away else 0)
        came = rows.new_empty(sum(receives), *rows.shape[1:])
        sizes, receives = list(sizes), list(receives)
        dist.all_to_all_single(came, rows.contiguous(), receives, sizes, group=self.group)
        return came

    def reduce(self, x: Tensor, operation: Any, way: Way) -> Tensor:
        """All-reduce a copy of x."""
        self.sent.add(way, reduced(x.numel(), self.ranks) * x.element_size())
        total = x.contiguous().clone()
        dist.all_reduce(total, operation, group=self.group)
        return total


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, index: Tensor, sizes: list[int], receives: list[int], link: Exchange
    ) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape, ctx.sizes, ctx.receives, ctx.link = rows.shape, sizes, receives, link
        return link.swap(rows.index_select(0, index), sizes, receives, "forward")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        back = ctx.link.swap(grad, ctx.receives, ctx.sizes, "backward")
        total = grad.new_zeros(ctx.shape).index_add_(0, index, back)
        return total, None, None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, link: Exchange) -> Tensor:
        ctx.link = link
        return link.reduce(x, dist.ReduceOp.SUM, "forward")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.link.reduce(grad, dist.ReduceOp.SUM, "backward"), None

"""Sums over the ranks of one axis, with the gradients that a part of a model needs.

Group.sum(x)       Σ over ranks; backward: Σ over ranks of the gradients
enter(x)           x on every rank; backward: Σ, since each rank used x for a part of the result
leave(y)           Σ over ranks of parts; backward: the gradient as it is
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.layers.across import Across


class Group(Across):
    """The ranks of a process group, as modules see them that share statistics."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def sum(self, x: Tensor) -> Tensor:
        return _SumOverRanks.apply(x, self.group, True, True)

    def gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.stack(parts)

    def __deepcopy__(self, memo: Any) -> Group:
        return self  # a process group cannot be copied


def enter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, whose gradients are summed: ranks go on with it separately."""
    return _SumOverRanks.apply(x, group, False, True)


def leave(y: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of what the ranks have; each has the gradient of the whole already."""
    return _SumOverRanks.apply(y, group, True, False)


class _SumOverRanks(torch.autograd.Function):
    """All-reduce in forward, in backward, or both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, forth: bool, back: bool) -> Tensor:
        ctx.group, ctx.back = group, back
        if not forth:
            return x.view_as(x)
        return reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return reduced(grad, ctx.group) if ctx.back else grad, None, None, None


def reduced(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of x over the ranks, in a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total

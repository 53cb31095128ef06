"""Recurrences along the sequence, and their gradients, with as little waiting as each allows.

    linear         h_t = a_t · h_(t−1) + b_t                 log₂ n passes over the whole sequence
    element-wise   h_t = step(x_t, h_(t−1)), by channels     n steps forward, log₂ n passes back
    any other      h_t = step(x_t, h_(t−1))                  n steps, and n back

Linear: pairs (a, b) of neighbouring runs join to (a a', a' b + b'), so runs double in each pass.
The gradient of an element-wise recurrence is itself linear, g_t = G_t + J_(t+1) · g_(t+1) with
J = ∂h_t / ∂h_(t−1), one number per channel: once all h are known, one call of `step` on all tokens
gives J, the linear scan gives g, and nothing waits. Memory is O(n c) in all three.

On a GPU the linear scan is one kernel, and so are the n steps of a cell that has one (`Fused`,
`triton.py`): a single step is too little work for a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.planner.context import STATE
from weft.kernels.planner.fast import Rule
from weft.kernels.recurrence.triton import can_fuse, fused_linear

# step(inputs at t, h before, weights) -> h; in the element-wise scan also for all tokens at once.
Step = Callable[[tuple[Tensor, ...], Tensor, tuple[Tensor, ...]], Tensor]
# fused(inputs, h before the first token, weights) -> all h: the steps of one cell by one kernel.
Fused = Callable[[tuple[Tensor, ...], Tensor, tuple[Tensor, ...]], Tensor]


def linear_scan(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """All h_t (b, n, c) of h_t = a_t · h_(t−1) + b_t, where h before the first token is `start`."""
    return _LinearScan.apply(a, b, start)


def elementwise_scan(
    step: Step,
    inputs: tuple[Tensor, ...],
    start: Tensor,
    weights: tuple[Tensor, ...],
    fused: Fused | None = None,
) -> Tensor:
    """h_t = step(inputs at t, h_(t−1), weights), channel by channel: (b, n, c).

    Inputs are (b, n, ...), weights broadcast, and a channel of h reads that channel of h alone.
    `fused` does the same steps where kernels run.
    """
    return _ElementwiseScan.apply(step, fused, len(inputs), start, *inputs, *weights)


def scan(
    step: Step, inputs: tuple[Tensor, ...], start: Tensor, weights: tuple[Tensor, ...] = ()
) -> Tensor:
    """h_t = step(inputs at t, h_(t−1), weights), one token at a time: (b, n, c)."""
    if STATE.skipping:
        return start.new_zeros(start.shape[0], inputs[0].shape[1], *start.shape[1:])
    state, states = start, []
    for now in zip(*(x.unbind(1) for x in inputs), strict=True):
        state = step(now, state, weights)
        states.append(state)
    return torch.stack(states, dim=1)


def _doubled(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """The linear recurrence by doubling; on a GPU, by a kernel."""
    if can_fuse(a, b, start):
        return fused_linear(a, b, start)
    n = b.shape[1]
    b = torch.cat((b[:, :1] + a[:, :1] * start[:, None], b[:, 1:]), dim=1)
    reach = 1
    while reach < n:
        # The run that ends at t is joined to the one that ends `reach` tokens before it.
        b = b + a * F.pad(b[:, : n - reach], (0, 0, reach, 0))
        if 2 * reach < n:
            a = a * F.pad(a[:, : n - reach], (0, 0, reach, 0), value=1.0)
        reach *= 2
    return b


def _backwards(jacobian: Tensor, grad: Tensor) -> Tensor:
    """g_t = G_t + J_(t+1) · g_(t+1), from the last token to the first: (b, n, c)."""
    if can_fuse(jacobian, grad):
        return fused_linear(jacobian, grad, torch.zeros_like(grad[:, 0]), back=True)
    following = F.pad(jacobian[:, 1:], (0, 0, 0, 1)).flip(1)
    return _doubled(following, grad.flip(1), torch.zeros_like(grad[:, 0])).flip(1)


def _before(h: Tensor, start: Tensor) -> Tensor:
    """h_(t−1) for every t: (b, n, c)."""
    return torch.cat((start[:, None], h[:, :-1]), dim=1)


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        h = _doubled(a, b, start)
        ctx.save_for_backward(a, h, start)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        a, h, start = ctx.saved_tensors
        g = _backwards(a, grad)
        return g * _before(h, start), g, a[:, 0] * g[:, 0]


class _ElementwiseScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, step: Step, fused: Fused | None, count: int, start: Tensor, *tensors: Tensor
    ) -> Tensor:
        inputs, weights = tensors[:count], tensors[count:]
        known = Rule(fused is not None, "has no kernel for this cell")
        if can_fuse(start, *tensors, rules=(known,)) and fused is not None:
            h = fused(inputs, start, weights)
        else:
            h = scan(step, inputs, start, weights)
        ctx.step, ctx.count = step, count
        ctx.save_for_backward(start, h, *tensors)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        start, h, *tensors = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            before = _before(h, start).detach().requires_grad_()
            again = ctx.step(tuple(leaves[: ctx.count]), before, tuple(leaves[ctx.count :]))
            (jacobian,) = torch.autograd.grad(again.sum(), before, retain_graph=True)
        g = _backwards(jacobian, grad)
        found = torch.autograd.grad(again, leaves, g)
        return None, None, None, jacobian[:, 0] * g[:, 0], *found

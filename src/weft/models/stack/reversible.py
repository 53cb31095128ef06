"""Reversible residuals: the stack's memory for training does not grow with its depth.

    y1 = x1 + F(x2),   y2 = x2 + G(y1)      and back:      x2 = y2 − G(y1),   x1 = y1 − F(x2)

Written for any order of sublayers f: (a, b) -> (b, a + f(b)), the streams change places each time.
Both streams start as the input and end as their mean. Backward rebuilds each sublayer's input from
its output, so O(n·c) numbers are stored for the whole stack and every sublayer runs twice.

Edge cases: the streams are kept in float32 or wider, because rebuilding by subtraction loses what
rounding lost. What is rebuilt may differ in its last digits: choices that go through
`layers/choice.py` (those of the sparse feed-forward) are kept and made again, others (buckets,
top-k) may fall otherwise at a tie in the second run. Once differentiable. Norms stand before f.

Paper: Gomez et al. 2017, https://arxiv.org/abs/1707.04585; for transformers Kitaev et al. 2020,
section 3, https://arxiv.org/abs/2001.04451
Differs from it: the mean of the streams leaves the stack, where Reformer concatenates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.models.stack.recompute import Moment
from weft.models.stack.sublayer import StackInputs, Sublayer

_SAVED = ("valid", "context", "context_valid", "seen", "places")  # the tensors of a StackInputs


def reversible(sublayers: Sequence[Sublayer], x: Tensor, given: StackInputs) -> Tensor:
    """(b, n, c) -> (b, n, c) through all sublayers."""
    stream = x.to(torch.promote_types(x.dtype, torch.float32))
    if torch.is_grad_enabled():
        unique = dict.fromkeys(p for sub in sublayers for p in sub.parameters() if p.requires_grad)
        args = (sublayers, x.dtype, given, stream, stream, given.context, *unique)
        a, b = _Reversible.apply(*args)
    else:
        a, b = stream, stream
        for sublayer in sublayers:
            a, b = b, a + sublayer.branch(b.to(x.dtype), given)
    return merge(a, b).to(x.dtype)


def merge(a: Tensor, b: Tensor) -> Tensor:
    """One stream out of two."""
    return (a + b) / 2


class _Reversible(torch.autograd.Function):
    """Parameters and context are inputs, so that their gradients leave the usual way."""

    @staticmethod
    def forward(
        ctx: Any,
        sublayers: Sequence[Sublayer],
        dtype: torch.dtype,
        given: StackInputs,
        a: Tensor,
        b: Tensor,
        context: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.sublayers, ctx.dtype, ctx.moments = sublayers, dtype, []
        ctx.parameters = parameters
        for sublayer in sublayers:
            moment = Moment(sublayer, a.device)
            with moment.record():
                a, b = b, a + sublayer.branch(b.to(dtype), given)
            ctx.moments.append(moment)
        marks = given.marks or {}
        ctx.given = given._replace(**dict.fromkeys(_SAVED), marks=None)
        ctx.marked = tuple(marks)
        saved = (getattr(given, name) for name in _SAVED)
        ctx.save_for_backward(a, b, *saved, *marks.values())
        return a, b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_a: Tensor, grad_b: Tensor) -> tuple[Tensor | None, ...]:
        a, b, *saved = ctx.saved_tensors
        marks = dict(zip(ctx.marked, saved[len(_SAVED) :], strict=True))
        given = dict(zip(_SAVED, saved, strict=False))
        given = ctx.given._replace(**given, marks=marks)
        grads: dict[Tensor | None, Tensor] = {}
        if given.context is not None:
            context = given.context.detach().requires_grad_(ctx.needs_input_grad[5])
            given = given._replace(context=context)
        for sublayer, moment in zip(reversed(ctx.sublayers), reversed(ctx.moments), strict=True):
            # (a, b) is what left the sublayer: its inputs were b − f(a) and a.
            with torch.enable_grad(), moment.replay():
                entered = a.detach().requires_grad_()
                branch = sublayer.branch(entered.to(ctx.dtype), given)
            through = _backward(branch, grad_b, entered, sublayer, given.context, grads)
            a, b = b - branch.detach(), entered.detach()
            grad_a, grad_b = grad_b, grad_a + through
        tail = (grads.get(parameter) for parameter in ctx.parameters)
        return None, None, None, grad_a, grad_b, grads.get(given.context), *tail


def _backward(
    branch: Tensor,
    grad: Tensor,
    entered: Tensor,
    sublayer: Sublayer,
    context: Tensor | None,
    grads: dict[Tensor | None, Tensor],
) -> Tensor:
    """The gradient of what entered one branch; those of parameters and context add to `grads`."""
    leaves = [p for p in sublayer.parameters() if p.requires_grad]
    leaves += [context] if context is not None and context.requires_grad else []
    found = torch.autograd.grad(
        branch, [entered, *leaves], grad.to(branch.dtype), allow_unused=True
    )
    for leaf, part in zip(leaves, found[1:], strict=True):
        if part is not None:
            grads[leaf] = grads[leaf] + part if leaf in grads else part
    return torch.zeros_like(entered) if found[0] is None else found[0]

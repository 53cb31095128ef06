"""Portable block-sparse attention: gather the visible key blocks of each query block, then attend.

Plain PyTorch on any device, trainable, O(n·w) memory. On a CPU the groups of blocks go through
torch's fused kernel, forward and backward, and nothing that is gathered is kept in between; a bias
or dropout takes the plain equation instead.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.bias import Bias, dense_bias
from weft.kernels.dense import dense_attention, expand_heads
from weft.kernels.fused import fused_backward, fused_forward
from weft.kernels.grouping import Group, Grouping, grouping
from weft.kernels.labels import Labels
from weft.patterns.lower import Part

Masks = list[tuple[Tensor | None, Tensor | None]]


def gather_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    block: int,
    scale: float,
    labels: Labels | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    q, k, v and `labels` stand in the order of the part.
    """
    n, heads = q.shape[2], q.shape[1]
    k, v = expand_heads(k, heads), expand_heads(v, heads)
    q, k, v = (_blocks(x, block) for x in (q, k, v))  # (b, h, blocks, block, d)
    plan = grouping(part, block, q.device)
    if not plan.groups:
        q = q.flatten(2, 3)[:, :, :n]
        return q * 0.0, q[..., 0].float() - float("inf")
    masks = [_masks(group, labels) for group in plan.groups]
    if bias is None and not dropout and q.device.type == "cpu":
        out, lse = _FusedBlocks.apply(q, k, v, plan, masks, scale)
    else:
        out, lse = _plain_blocks(q, k, v, plan, masks, scale, bias, dropout)
    return out.flatten(2, 3)[:, :, :n], lse.flatten(2, 3)[:, :, :n]


class _FusedBlocks(torch.autograd.Function):
    """All groups through the fused kernel; keys and values are gathered again going back."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Grouping, masks: Masks, scale: float
    ) -> tuple[Tensor, Tensor]:
        out = torch.zeros_like(q)
        lse = out[..., 0].to(torch.promote_types(q.dtype, torch.float32)) - float("inf")
        for group, (mask, dead) in zip(plan.groups, masks, strict=True):
            o, s = fused_forward(*_gather(q, k, v, group), _additive(mask, q), scale)
            out.index_copy_(2, group.rows, _hide(_rows(o, q), dead, 0.0))
            lse.index_copy_(2, group.rows, _rows(s, q))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.masks, ctx.scale = plan, masks, scale
        ctx.set_materialize_grads(False)
        for group, (_, dead) in zip(plan.groups, masks, strict=True):
            if dead is not None:
                seen = _hide(lse.index_select(2, group.rows), dead, float("-inf"))
                lse = lse.index_copy(2, group.rows, seen)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for group, (mask, dead) in zip(ctx.plan.groups, ctx.masks, strict=True):
            do, o, s = (x.index_select(2, group.rows) for x in (dout, out, lse))
            do = _hide(do, dead, 0.0)
            ds = None if dlse is None else _hide(dlse.index_select(2, group.rows), dead, 0.0)
            do, ds, o, s = (None if x is None else x.flatten(0, 1) for x in (do, ds, o, s))
            own, added = _gather(q, k, v, group), _additive(mask, q)
            gq, gk, gv = fused_backward(do, ds, *own, o, s, added, ctx.scale)
            dq.index_copy_(2, group.rows, _rows(gq, q))
            for whole, grad in ((dk, gk), (dv, gv)):
                blocks = grad.unflatten(2, (-1, q.shape[3])).flatten(1, 2)
                whole.index_add_(2, group.cols.flatten(), _rows(blocks, q))
        return dq, dk, dv, None, None, None


def _gather(q: Tensor, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """q (b·h, rows, block, d) of the group, and the keys and values its rows see, side by side."""
    rows, cols = len(group.rows), group.cols.flatten()
    q = q.index_select(2, group.rows).flatten(0, 1)
    k, v = (x.index_select(2, cols).flatten(0, 1) for x in (k, v))
    return q, *(x.unflatten(1, (rows, -1)).flatten(2, 3) for x in (k, v))


def _rows(x: Tensor, q: Tensor) -> Tensor:
    """(b·h, ...) -> (b, h, ...)."""
    return x.unflatten(0, q.shape[:2])


def _hide(x: Tensor, dead: Tensor | None, value: float) -> Tensor:
    """Rows (b, h, rows, block) or with a width behind: those that see nothing get `value`."""
    if dead is None:
        return x
    return x.masked_fill(dead[..., None] if x.dim() == 5 else dead, value)


def _additive(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """0 where seen, −inf where not: (1 or b·h, 1 or rows, block, keys)."""
    if mask is None:
        return None
    added = q.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    if mask.dim() == 3:
        return added[None]
    return added.expand(-1, q.shape[1], *added.shape[2:]).flatten(0, 1)


def _masks(group: Group, labels: Labels | None) -> tuple[Tensor | None, Tensor | None]:
    """What a group sees, (1 or rows, block, keys) or (b, 1, rows, block, keys), and its dead rows.

    A dead row is unmasked, so that nothing becomes NaN, and hidden afterwards.
    """
    mask, dead = group.mask, group.dead
    if labels is None:
        return mask, dead
    seen = _carried(labels, group)  # (b, rows, block or 1, keys)
    mask = seen.expand(-1, -1, group.i.shape[1], -1) if mask is None else seen & mask
    dead = ~mask.any(-1) if dead is None else dead | ~mask.any(-1)
    mask = mask | dead[..., None]
    return mask[:, None], dead[:, None]


def _plain_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Grouping,
    masks: Masks,
    scale: float,
    bias: Bias | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """All groups by the plain equation, under autograd."""
    out = torch.zeros_like(q)
    lse = out[..., 0].to(torch.promote_types(q.dtype, torch.float32)) - float("inf")
    for group, (mask, dead) in zip(plan.groups, masks, strict=True):
        added = bias and dense_bias(bias, q.shape[1], group.i[..., None], group.j[:, None, :])
        own = (_rows(x, q) for x in _gather(q, k, v, group))
        o, s = _plain(*own, mask, added, scale, dropout)
        out = out.index_copy(2, group.rows, _hide(o, dead, 0.0))
        lse = lse.index_copy(2, group.rows, _hide(s, dead, float("-inf")))
    return out, lse


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    lead, rows = q.shape[:2], q.shape[2]
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))  # (b, h·rows, ...)
    shape = (*lead, rows, q.shape[2], k.shape[2])
    if mask is not None:
        mask = mask.expand(shape).flatten(1, 2)
    if bias is not None:
        bias = bias[None].expand(shape).flatten(1, 2)
    out, lse = dense_attention(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout)
    return out.unflatten(1, (lead[1], rows)), lse.unflatten(1, (lead[1], rows))


def _blocks(x: Tensor, block: int) -> Tensor:
    """(b, h, n, d) -> (b, h, blocks, block, d), padded with zeros."""
    missing = -x.shape[2] % block
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(2, (-1, block))


def _carried(labels: Labels, group: Group) -> Tensor:
    """Which gathered keys carry the label of their query: (b, rows, block or 1, keys)."""
    block = group.i.shape[1]
    keys = _in_blocks(labels.keys, block)[:, group.cols].flatten(2)  # (b, rows, keys)
    queries = labels.queries
    if queries.shape[1] > 1:
        queries = _in_blocks(queries, block)[:, group.rows]  # (b, rows, block)
    else:
        queries = queries[:, None]
    return queries[..., None] == keys[:, :, None, :]


def _in_blocks(labels: Tensor, block: int) -> Tensor:
    """(b, m) -> (b, blocks, block), padded with −1."""
    return F.pad(labels, (0, -labels.shape[1] % block), value=-1).unflatten(1, (-1, block))

"""Portable block-sparse attention: gather the visible key blocks of each query block, then attend.

Plain PyTorch on any device, trainable, O(n·w) memory. On a CPU the blocks go through torch's fused
kernel in pieces that fit the cache, forward and backward, and nothing that is gathered is kept in
between; the windows of a band are views, not copies. A bias or dropout takes the plain equation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.attend.bias import Bias, dense_bias
from weft.kernels.attend.masking import KeyLabels
from weft.kernels.block_sparse.grouping import Grouping, RowGroup, grouping
from weft.kernels.dense.cpu import fused_backward, fused_forward
from weft.kernels.dense.reference import dense_attention, expand_heads
from weft.patterns.lower import Part

Masks = list[tuple[Tensor | None, Tensor | None]]
_PIECE = 4 << 20  # bytes of keys that are gathered at a time


def gather_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    block: int,
    scale: float,
    labels: KeyLabels | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    q, k, v and `labels` are in the order of the part.
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
    """Piece by piece through the fused kernel; what is gathered is gathered again in backward."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Grouping, masks: Masks, scale: float
    ) -> tuple[Tensor, Tensor]:
        out = torch.zeros_like(q)
        lse = out[..., 0].to(torch.promote_types(q.dtype, torch.float32)) - float("inf")
        for piece in _pieces(q, plan, masks):
            o, s = fused_forward(*piece.take(q, k, v), piece.mask, scale)
            piece.put(out, o if piece.dead is None else o.masked_fill(piece.dead[..., None], 0.0))
            piece.put(lse, s)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.masks, ctx.scale = plan, masks, scale
        ctx.set_materialize_grads(False)
        shown = lse.clone()
        for piece in _pieces(q, plan, masks):
            if piece.dead is not None:
                piece.put(shown, piece.rows(shown).masked_fill(piece.dead, float("-inf")))
        return out, shown

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for piece in _pieces(q, ctx.plan, ctx.masks):
            do, o, s = (piece.rows(x) for x in (dout, out, lse))
            ds = None if dlse is None else piece.rows(dlse)
            if piece.dead is not None:
                do = do.masked_fill(piece.dead[..., None], 0.0)
                ds = None if ds is None else ds.masked_fill(piece.dead, 0.0)
            grads = fused_backward(do, ds, *piece.take(q, k, v), o, s, piece.mask, ctx.scale)
            piece.put(dq, grads[0])
            piece.add(dk, grads[1])
            piece.add(dv, grads[2])
        return dq, dk, dv, None, None, None


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some rows of a group, of one row of the batch: small enough to stay in the cache."""

    batch: int
    group: RowGroup
    part: slice  # of the rows of the group
    mask: Tensor | None  # additive: (1, 1 or rows, block, keys)
    dead: Tensor | None  # (1 or rows, block)

    def rows(self, x: Tensor) -> Tensor:
        """(b, h, blocks, block, ...) -> (h, rows, block, ...): a view of consecutive rows."""
        first, x = self.group.first, x[self.batch]
        if first is None:
            return x.index_select(1, self.group.rows[self.part])
        return x[:, first + self.part.start : first + self.part.stop]

    def put(self, x: Tensor, own: Tensor) -> None:
        """Write rows (h, rows, block, ...) of x (b, h, blocks, block, ...)."""
        if self.group.first is None:
            x[self.batch].index_copy_(1, self.group.rows[self.part], own)
        else:
            self.rows(x).copy_(own)

    def take(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (h, rows, block, d), and the keys and values its rows see: (h, rows, keys, d)."""
        return self.rows(q), self._seen(k), self._seen(v)

    def _seen(self, x: Tensor) -> Tensor:
        x, cols = x[self.batch], self.group.cols[self.part]
        if self.group.shift is None:
            return x.index_select(1, cols.flatten()).unflatten(1, cols.shape).flatten(2, 3)
        # Windows of neighbouring rows overlap in memory: nothing is copied.
        h, rows, (block, d) = x.shape[0], len(cols), x.shape[2:]
        head, line, token, channel = x.stride()
        at = x.storage_offset() + (self.group.first + self.part.start + self.group.shift) * line
        size = (h, rows, cols.shape[1] * block, d)
        return x.as_strided(size, (head, line, token, channel), at)

    def add(self, x: Tensor, grad: Tensor) -> None:
        """Add gradients (h, rows, keys, d) to the blocks of x (b, h, blocks, block, d) they saw."""
        x, cols = x[self.batch], self.group.cols[self.part]
        blocks = grad.unflatten(2, (cols.shape[1], -1))  # (h, rows, blocks, block, d)
        if self.group.shift is None:
            x.index_add_(1, cols.flatten(), blocks.flatten(1, 2))
            return
        start = self.group.first + self.part.start + self.group.shift
        for at in range(cols.shape[1]):
            x[:, start + at : start + at + len(cols)] += blocks[:, :, at]


def _pieces(q: Tensor, plan: Grouping, masks: Masks) -> Iterator[_Piece]:
    b, h, _, block, d = q.shape
    for group, (mask, dead) in zip(plan.groups, masks, strict=True):
        count, keys = len(group.rows), group.cols.shape[1] * block
        step = max(1, _PIECE // (h * keys * d * q.element_size()))
        own = mask is not None and mask.dim() == 5
        shared = None if mask is None or own or len(mask) > 1 else _additive(mask, q)
        for batch in range(b):
            for at in range(0, count, step):
                part = slice(at, min(at + step, count))
                one, gone = shared, dead
                if mask is not None and shared is None:
                    one = _additive((mask[batch, 0] if own else mask)[part], q)
                if dead is not None and (own or len(dead) > 1):
                    gone = (dead[batch, 0] if own else dead)[part]
                yield _Piece(batch, group, part, one, gone)


def _additive(mask: Tensor, q: Tensor) -> Tensor:
    """0 where seen, −inf where not: (1, 1 or rows, block, keys)."""
    return q.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))[None]


def _gather(q: Tensor, k: Tensor, v: Tensor, group: RowGroup) -> tuple[Tensor, Tensor, Tensor]:
    """q (b·h, rows, block, d) of the group, and the keys and values its rows see, concatenated."""
    rows, cols = len(group.rows), group.cols.flatten()
    q = q.index_select(2, group.rows).flatten(0, 1)
    k, v = (x.index_select(2, cols).flatten(0, 1) for x in (k, v))
    k, v = (x.unflatten(1, (rows, -1)).flatten(2, 3) for x in (k, v))
    return q, k, v


def _rows(x: Tensor, q: Tensor) -> Tensor:
    """(b·h, ...) -> (b, h, ...)."""
    return x.unflatten(0, q.shape[:2])


def _hide(x: Tensor, dead: Tensor | None, value: float) -> Tensor:
    """Rows (b, h, rows, block) or with a width behind: those that see nothing get `value`."""
    if dead is None:
        return x
    return x.masked_fill(dead[..., None] if x.dim() == 5 else dead, value)


def _masks(group: RowGroup, labels: KeyLabels | None) -> tuple[Tensor | None, Tensor | None]:
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
        own_q, own_k, own_v = (_rows(x, q) for x in _gather(q, k, v, group))
        o, s = _plain(own_q, own_k, own_v, mask, added, scale, dropout)
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


def _carried(labels: KeyLabels, group: RowGroup) -> Tensor:
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

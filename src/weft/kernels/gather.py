"""Portable block-sparse attention: gather the visible key blocks of each query block, then attend.

Plain PyTorch on any device, trainable, O(n·w) memory. Rows of blocks that look alike are computed
together: rows whose visible blocks lie at the same offsets share one mask where the pattern is
relative; the others are grouped by how many blocks they see, and carry masks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.bias import Bias, dense_bias
from weft.kernels.dense import dense_attention, expand_heads
from weft.kernels.fused import fused_attention
from weft.kernels.labels import Labels
from weft.patterns.lower import Part
from weft.patterns.region import Ints


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of blocks computed together; mask (1 or rows, block, keys), None where all is seen."""

    rows: Tensor  # (rows,)
    cols: Tensor  # (rows, blocks)
    mask: Tensor | None
    dead: Tensor | None  # like mask without keys: queries that see nothing
    i: Tensor  # (rows, block)
    j: Tensor  # (rows, keys)


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
    qb, kb, vb = (_blocks(x, block) for x in (q, k, v))  # (b, h, blocks, block, d)
    groups = _groups(part, block, q.device)
    pieces = []
    for group in groups:
        flat = group.cols.flatten()
        qg = qb if len(group.rows) == qb.shape[2] else qb.index_select(2, group.rows)
        kg, vg = (x.index_select(2, flat).unflatten(2, (len(group.rows), -1)) for x in (kb, vb))
        kg, vg = (x.flatten(3, 4) for x in (kg, vg))  # (b, h, rows, keys, d)
        pieces.append(_attend(qg, kg, vg, group, labels, scale, bias, dropout))
    if len(pieces) == 1 and len(groups[0].rows) == qb.shape[2]:
        out, lse = pieces[0]
    elif not pieces:
        out, lse = qb * 0.0, qb.new_full(qb.shape[:-1], float("-inf"))
    else:
        index = torch.cat([group.rows for group in groups])
        out = qb.new_zeros(qb.shape).index_copy(2, index, torch.cat([o for o, _ in pieces], 2))
        every = torch.cat([s for _, s in pieces], 2)
        empty = every.new_full(qb.shape[:-1], float("-inf"))
        lse = empty.index_copy(2, index, every)
    return out.flatten(2, 3)[:, :, :n], lse.flatten(2, 3)[:, :, :n]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group,
    labels: Labels | None,
    scale: float,
    bias: Bias | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """One group: q (b, h, rows, block, d), k and v (b, h, rows, keys, d)."""
    mask, dead = group.mask, group.dead
    if labels is not None:
        seen = _gathered(labels, group)  # (b, rows, block or 1, keys)
        mask = seen if mask is None else seen & mask
        dead = ~mask.any(-1) if dead is None else dead | ~mask.any(-1)
        mask = mask | dead[..., None]
        mask, dead = mask[:, None], dead[:, None]  # (b, 1, rows, block, keys)
    if bias is None and not dropout and q.device.type == "cpu":
        out, lse = _fused(q, k, v, mask, scale)
    else:
        added = bias and dense_bias(bias, q.shape[1], group.i[..., None], group.j[:, None, :])
        out, lse = _plain(q, k, v, mask, added, scale, dropout)
    if dead is not None:
        out = out.masked_fill(dead[..., None], 0.0)
        lse = lse.masked_fill(dead, float("-inf"))
    return out, lse


def _fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    lead, rows = q.shape[:2], q.shape[2]
    added = None
    if mask is not None:
        added = q.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))
        if added.dim() == 5:
            added = added.expand(*lead, rows, *added.shape[-2:]).flatten(0, 1)
        else:
            added = added[None]  # (1, 1 or rows, block, keys)
    out, lse = fused_attention(*(x.flatten(0, 1) for x in (q, k, v)), added, scale)
    return out.unflatten(0, lead), lse.unflatten(0, lead)


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


def _gathered(labels: Labels, group: Group) -> Tensor:
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


@lru_cache(maxsize=32)
def _groups(part: Part, block: int, device: torch.device) -> tuple[Group, ...]:
    found = part.layout(block)
    widths = np.diff(found.start)
    offsets = [tuple(found.cols[a:b]) for a, b in zip(found.start, found.start[1:], strict=False)]
    alike: dict[object, list[int]] = {}
    for u, cols in enumerate(offsets):
        if cols:
            edge = u == found.rows - 1 or cols[-1] == found.columns - 1
            shift = tuple(np.subtract(cols, u)) if part.pattern.relative and not edge else None
            alike.setdefault(shift or _rounded(int(widths[u])), []).append(u)
    # A shared mask pays from a few rows on.
    shared = {s: rows for s, rows in alike.items() if isinstance(s, tuple) and len(rows) > 2}
    loose: dict[int, list[int]] = {}
    for s, rows in alike.items():
        if s not in shared:
            loose.setdefault(_rounded(int(widths[rows[0]])), []).extend(rows)
    made = [_group(part, block, rows, True, device) for rows in shared.values()]
    made += [_group(part, block, sorted(rows), False, device) for rows in loose.values()]
    return tuple(made)


def _rounded(width: int) -> int:
    """Widths are rounded up to 1, 2, 3, 4, 6, 8, 12, ...: few groups, little padding."""
    size = 1
    while size < width:
        size += max(1, size // 2) if size & (size - 1) == 0 else size // 3
    return size


def _group(part: Part, block: int, rows: list[int], shared: bool, device: torch.device) -> Group:
    found = part.layout(block)
    widths = np.diff(found.start)[rows]
    cols = np.zeros((len(rows), widths.max()), dtype=np.int64)
    there = np.arange(cols.shape[1]) < widths[:, None]
    full = np.zeros(cols.shape, dtype=bool)
    cols[there] = np.concatenate([found.cols[found.start[u] : found.start[u + 1]] for u in rows])
    full[there] = np.concatenate([found.full[found.start[u] : found.start[u + 1]] for u in rows])
    i, i_real = _positions(part.rows.positions(), np.asarray(rows)[:, None], block)
    j, j_real = _positions(part.cols.positions(), cols, block)
    mask = None
    if not (full.all() and j_real.all()):
        some = slice(0, 1) if shared else slice(None)
        seen = part.pattern.sees(
            torch.as_tensor(i[some, :, None]), torch.as_tensor(j[some, None]), part.length
        ).numpy()
        keep = np.repeat(there[some], block, 1) & j_real[some]
        # Queries beyond the end are don't-care: they see everything, so nothing becomes NaN.
        mask = torch.as_tensor((seen & keep[:, None]) | ~i_real[some][..., None], device=device)
    dead = None if mask is None else ~mask.any(-1)
    if dead is not None and dead.any():
        mask = mask | dead[..., None]
    else:
        dead = None
    tensors = (torch.as_tensor(np.asarray(x), device=device) for x in (rows, cols, i, j))
    index, columns, i_t, j_t = tensors
    return Group(index, columns, mask, dead, i_t, j_t)


def _positions(order: Ints, blocks: Ints, block: int) -> tuple[Ints, np.ndarray]:
    """Positions (rows, blocks·block) of these blocks, and which of them exist."""
    index = (blocks[:, :, None] * block + np.arange(block)).reshape(len(blocks), -1)
    return order[np.minimum(index, len(order) - 1)], index < len(order)

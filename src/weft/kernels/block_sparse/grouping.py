"""Rows of blocks that are computed together by the gather kernel.

Rows whose visible blocks lie at the same offsets share one mask where the pattern is relative; the
others are grouped by how many blocks they see, and carry masks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.kernels.device_cache import device_cache
from weft.patterns.lower import Part
from weft.patterns.order import Order
from weft.patterns.region import Ints


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows of blocks computed together; mask (1 or rows, block, keys), None where all is seen."""

    rows: Tensor  # (rows,)
    cols: Tensor  # (rows, blocks)
    mask: Tensor | None
    dead: Tensor | None  # like mask without keys: queries that see nothing
    i: Tensor  # (rows, block)
    j: Tensor  # (rows, keys)
    first: int | None = None  # the first row, where rows are consecutive
    shift: int | None = None  # where row u sees the consecutive blocks u + shift, ...


@dataclass(frozen=True, eq=False)
class Grouping:
    """All groups of a layout."""

    groups: tuple[RowGroup, ...]


@device_cache(32)
def grouping(part: Part, block: int, device: torch.device) -> Grouping:
    """The groups of a part at a block size, on a device."""
    return Grouping(_groups(part, block, device))


def _groups(part: Part, block: int, device: torch.device) -> tuple[RowGroup, ...]:
    found = part.layout(block)
    # A selection of keys stretches distances, so equal offsets of blocks mean nothing there.
    shifts = part.pattern.relative and type(part.rows) is type(part.cols) is Order
    widths = np.diff(found.start)
    offsets = [tuple(found.cols[a:b]) for a, b in zip(found.start, found.start[1:], strict=False)]
    alike: dict[object, list[int]] = {}
    for u, cols in enumerate(offsets):
        if cols:
            edge = u == found.rows - 1 or cols[-1] == found.columns - 1
            shift = tuple(np.subtract(cols, u)) if shifts and not edge else None
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


def _group(part: Part, block: int, rows: list[int], shared: bool, device: torch.device) -> RowGroup:
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
        # Queries beyond the end are unused: they see everything, so nothing becomes NaN.
        mask = torch.as_tensor((seen & keep[:, None]) | ~i_real[some][..., None], device=device)
    dead = None if mask is None else ~mask.any(-1)
    if mask is not None and dead is not None and dead.any():
        mask = mask | dead[..., None]
    else:
        dead = None
    tensors = (torch.as_tensor(np.asarray(x), device=device) for x in (rows, cols, i, j))
    index, columns, i_t, j_t = tensors
    return RowGroup(index, columns, mask, dead, i_t, j_t, *_consecutive(np.asarray(rows), cols))


def _consecutive(rows: Ints, cols: Ints) -> tuple[int | None, int | None]:
    """The first row if rows are consecutive, and the shift if their columns follow them."""
    if not (np.diff(rows) == 1).all():
        return None, None
    shift = int(cols[0, 0] - rows[0])
    follow = rows[:, None] + shift + np.arange(cols.shape[1])
    return int(rows[0]), shift if (cols == follow).all() else None


def _positions(order: Ints, blocks: Ints, block: int) -> tuple[Ints, np.ndarray]:
    """Positions (rows, blocks·block) of these blocks, and which of them exist."""
    index = (blocks[:, :, None] * block + np.arange(block)).reshape(len(blocks), -1)
    return order[np.minimum(index, len(order) - 1)], index < len(order)

"""What the block-sparse kernels walk: the visible blocks of a layout, as lists on a device.

Blocks that are only partly visible carry a tile of biases, evaluated once, equal tiles stored
once. A key block that very many rows read is cut into shares, so that no processor works alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.device_cache import device_cache
from weft.patterns.layout import Layout
from weft.patterns.lower import Lowered, Part
from weft.patterns.order import Order
from weft.patterns.region import Bools, Ints

_PROCESSORS = 132
_LEAST_SHARE = 16  # rows that one program takes of a key block, at least


@dataclass(frozen=True, eq=False)
class BlockLists:
    """The visible blocks of a layout, by row and by shares of columns, on a device.

    Of several layouts (`lists_of_several`), those of rows and shares are concatenated.
    """

    block: int
    rows: int
    start: Tensor  # (rows + 1,) where the list of each row begins
    middle: Tensor  # (rows,) where its full blocks begin
    cols: Tensor  # (visible,) key block of each entry
    tile_of: Tensor  # (visible,) tile of each entry that is partial
    order: Tensor  # (rows,) longest rows first
    shares: tuple[Tensor, ...]  # column, first, middle, last, place in the shared sums or −1
    back_rows: Tensor  # (visible,) query block of each entry, by column
    back_tiles: Tensor
    tiles: Tensor  # (tiles, block, block) added to scores, queries × keys: 0 where seen, else −∞
    back: Tensor  # the same, keys × queries
    shared: Ints  # columns that several shares work on
    layouts: int = 1


@dataclass(frozen=True, eq=False)
class KernelStep:
    """One part as the kernels run it: `fold` sequences, over all keys or over chosen ones."""

    fold: int
    lists: BlockLists
    chosen: Tensor | None
    pick: Tensor | None = None  # (b,) which of several layouts a row of the batch has


@device_cache(64)
def steps_of(
    lowered: Lowered, block: int, lines: int, m: int, device: torch.device
) -> tuple[KernelStep, ...]:
    """The parts as the kernels run them."""
    return tuple(
        KernelStep(part.fold, lists_of(part, block, lines, device), _chosen(part, m, device))
        for part in lowered.parts
    )


@device_cache(256)
def _chosen(part: Part, m: int, device: torch.device) -> Tensor | None:
    """The keys that the part selects, None if it takes all."""
    if part.fold > 1 or (type(part.cols) is Order and part.cols.count == m):
        return None
    return torch.as_tensor(part.cols.positions(), device=device)


@device_cache(64)
def lists_of(part: Part, block: int, lines: int, device: torch.device) -> BlockLists:
    """The lists of a part; `lines` sequences (batch × key heads) run in parallel."""
    found = part.layout(block)
    u, v = found.row_of, found.cols.astype(np.int64)
    full = found.full.copy()
    # Blocks that hang over the end are masked, so nothing beyond it counts.
    full &= (u < found.rows - 1) | (found.queries % block == 0)
    full &= (v < found.columns - 1) | (found.keys % block == 0)
    tiles, tile_of = _tiles(part, block, u[~full], v[~full])
    tile = np.full(len(u), -1)
    tile[~full] = tile_of
    by_row = np.lexsort((v, full, u))
    by_col = np.lexsort((u, full, v))
    start = np.searchsorted(u[by_row], np.arange(found.rows + 1))
    middle = start[1:] - np.bincount(u[full], minlength=found.rows)
    shares, shared = _shares(found, full, lines * part.fold)
    order = np.argsort(-np.diff(start), kind="stable")

    def put(x: Any, kind: Any = np.int32) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(x, dtype=kind), device=device)

    return BlockLists(
        block=block,
        rows=found.rows,
        start=put(start),
        middle=put(middle),
        cols=put(v[by_row]),
        tile_of=put(tile[by_row]),
        order=put(order),
        shares=tuple(put(x) for x in shares),
        back_rows=put(u[by_col]),
        back_tiles=put(tile[by_col]),
        tiles=_biases(tiles, device),
        back=_biases(tiles.transpose(0, 2, 1), device),
        shared=shared,
    )


def lists_of_several(
    entries: tuple[Ints, Ints, Ints], sizes: tuple[int, int, int], block: int, device: torch.device
) -> BlockLists:
    """Layouts of blocks that are seen whole: (layout, row, column) of each entry.

    An entry that is given k times counts k times in the softmax. `sizes` counts layouts, and rows
    and columns of each.
    """
    (layout, row, col), (layouts, rows, columns) = entries, sizes
    by_row, by_col = np.lexsort((col, row, layout)), np.lexsort((row, col, layout))
    wide = np.bincount(layout * rows + row, minlength=layouts * rows)  # entries of each row
    tall = np.bincount(layout * columns + col, minlength=layouts * columns)
    starts = np.append(0, np.cumsum(wide))
    starts = starts[np.arange(rows + 1) + rows * np.arange(layouts)[:, None]]
    ends = np.cumsum(tall)

    def put(x: Any, kind: Any = np.int32) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(x, dtype=kind), device=device)

    column, nowhere = np.tile(np.arange(columns), layouts), np.full(layouts * columns, -1)
    shares = (column, ends - tall, ends - tall, ends, nowhere)
    whole = _biases(np.ones((1, block, block), dtype=bool), device)
    return BlockLists(
        block=block,
        rows=rows,
        start=put(starts),
        middle=put(starts[:, :-1]),
        cols=put(col[by_row]),
        tile_of=put(np.zeros(1)),
        order=put(np.argsort(-wide.reshape(layouts, rows), axis=-1, kind="stable")),
        shares=tuple(put(x) for x in shares),
        back_rows=put(row[by_col]),
        back_tiles=put(np.zeros(1)),
        tiles=whole,
        back=whole,
        shared=np.zeros(0, dtype=np.int64),
        layouts=layouts,
    )


def _shares(found: Layout, full: Bools, lines: int) -> tuple[tuple[Ints, ...], Ints]:
    """Columns cut into shares of at most `most` blocks, longest first; and the columns cut.

    Every column gets a share, an empty one too: its gradient is written as 0.
    """
    v = found.cols.astype(np.int64)
    counts = np.bincount(v, minlength=found.columns)
    halves = np.bincount(v[~full], minlength=found.columns)
    begin = np.cumsum(counts) - counts
    # A column should take no longer than a quarter of what each processor has to do anyway.
    most = max(_LEAST_SHARE, len(v) * lines // (4 * _PROCESSORS))
    pieces = np.maximum(1, -(-counts // most))
    column = np.repeat(np.arange(found.columns), pieces)
    number = np.arange(len(column)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = begin[column] + number * most
    last = np.minimum(first + most, begin[column] + counts[column])
    middle = np.clip(begin[column] + halves[column], first, last)
    shared = np.flatnonzero(pieces > 1)
    place = np.full(found.columns, -1)
    place[shared] = np.arange(len(shared))
    order = np.argsort(first - last, kind="stable")
    return tuple(x[order] for x in (column, first, middle, last, place[column])), shared


def _biases(seen: Bools, device: torch.device) -> Tensor:
    """What is added to scores: 0 where they are seen, −∞ where not."""
    biases = torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
    return biases.to(device, torch.bfloat16).contiguous()


def _tiles(part: Part, block: int, u: Ints, v: Ints) -> tuple[np.ndarray, Ints]:
    """What the partial blocks (u, v) see, equal tiles once; and the tile of each."""
    rows, cols = part.rows.positions(), part.cols.positions()
    step = np.arange(block)
    known: dict[bytes, int] = {}
    tiles, index = [], np.zeros(len(u), dtype=np.int64)
    for at in range(0, len(u), 64):
        i = u[at : at + 64, None] * block + step
        j = v[at : at + 64, None] * block + step
        inside = (i < len(rows))[:, :, None] & (j < len(cols))[:, None, :]
        i_at, j_at = rows[np.minimum(i, len(rows) - 1)], cols[np.minimum(j, len(cols) - 1)]
        seen = part.pattern.sees(i_at[:, :, None], j_at[:, None, :], part.length) & inside
        for a, tile in enumerate(np.packbits(seen, axis=-1)):
            key = tile.tobytes()
            if key not in known:
                known[key] = len(tiles)
                tiles.append(seen[a])
            index[at + a] = known[key]
    if not tiles:
        tiles.append(np.ones((block, block), dtype=bool))
    return np.stack(tiles), index

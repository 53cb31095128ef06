"""A picture cut into windows and put together again, at any offset: (b, h, n, d) as windows.

Positions run in raster order, `width` to a row; the last row may be short. Borders of windows lie
where (y + shift) and (x + shift) are multiples of the size; windows at the edges are part empty.
Letters beside the usual ones: u windows, w places in a window.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_ROWS = 65_535  # of a batch: a GPU's kernels with dropout count them in 16 bits


class WindowGrid(NamedTuple):
    """How a sequence lies on a picture and where its windows are."""

    width: int  # positions in a row
    size: tuple[int, int]  # rows and columns of a window
    shift: tuple[int, int] = (0, 0)  # how far borders are moved, each below its size

    def padding(self, n: int) -> tuple[int, int, int, int]:
        """Columns left and right, rows above and below, that complete the windows."""
        height = -(-n // self.width)
        (rows, columns), (down, right) = self.size, self.shift
        return right, -(self.width + right) % columns, down, -(height + down) % rows


def into_windows(x: Tensor, grid: WindowGrid) -> Tensor:
    """(b, h, n, d) -> (b, u, h, w, d), zeros (False) where a window has no position."""
    n, (rows, columns) = x.shape[2], grid.size
    x = F.pad(x, (0, 0, 0, -n % grid.width)).unflatten(2, (-1, grid.width))
    x = F.pad(x, (0, 0, *grid.padding(n)))
    x = x.unflatten(3, (-1, columns)).unflatten(2, (-1, rows))
    return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(1, 2)


def from_windows(x: Tensor, grid: WindowGrid, n: int) -> Tensor:
    """Undo `into_windows`: (b, u, h, w, d) -> (b, h, n, d)."""
    left, right, above, below = grid.padding(n)
    across = (grid.width + left + right) // grid.size[1]
    x = x.unflatten(3, grid.size).unflatten(1, (-1, across))
    x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)
    x = x[:, :, above : x.shape[2] - below, left : left + grid.width]
    return x.flatten(2, 3)[:, :, :n]


def attend_windows(q: Tensor, k: Tensor, v: Tensor, added: Tensor, dropout: float) -> Tensor:
    """Dense attention in windows, q, k, v (b, u, h, w, d), added (b, u, h, w, w) to the scores."""
    # Windows are rows of the batch: heads would be counted in 16 bits, too.
    flat = (x.flatten(0, 1).split(MOST_ROWS) for x in (q, k, v, added))  # (b·u, h, w, _)
    parts = [
        F.scaled_dot_product_attention(*given, attn_mask=mask, dropout_p=dropout)
        for *given, mask in zip(*flat, strict=True)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.unflatten(0, q.shape[:2])

"""Bands: blocks of queries and the run of keys around each, so that a window costs O(n·w).

    keys of block u: positions u·w − before ... u·w + w − 1 + after

A band matrix has one row per query and one column per key of its block's run. What a query holds
for each *offset* (a label, a tap of a convolution) becomes such a row by `skew`. Letters: u blocks
of w queries, t offsets.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.convolution.triton import can_fuse, fused_tap_sum
from weft.kernels.slots import into_blocks

_LEAST_BLOCK = 16  # rows of a band matrix, at least


def key_runs(x: Tensor, block: int, before: int, after: int) -> Tensor:
    """(..., n, d) -> (..., u, before + block + after, d), zeros (False) beyond the ends."""
    n = x.shape[-2]
    x = F.pad(x, (0, 0, before, -n % block + after))
    return x.unfold(-2, before + block + after, block).transpose(-1, -2)


def skew(x: Tensor) -> Tensor:
    """(..., w, t) -> (..., w, w + t − 1): offset s of row i moves to column i + s; 0 elsewhere."""
    w, t = x.shape[-2:]
    flat = F.pad(x, (0, w)).flatten(-2)
    return flat[..., : w * (w + t - 1)].unflatten(-1, (w, w + t - 1))


def in_band(rows: int, offsets: int, device: torch.device) -> Tensor:
    """Which columns of a band matrix hold an offset: (w, w + t − 1)."""
    row = torch.arange(rows, device=device)[:, None]
    offset = torch.arange(rows + offsets - 1, device=device) - row
    return (offset >= 0) & (offset < offsets)


def tap_sum(x: Tensor, taps: Tensor, before: int) -> Tensor:
    """out_i = Σ_s taps_is · x_(i + s − before): x (b, h, n, d), taps (b, h, n, t) -> (b, h, n, d).

    A convolution whose weights may differ from token to token, as products of small band matrices;
    taps (1, h, 1, t) are the same for all. x is 0 beyond its ends.
    On a GPU: `convolution/triton.py`.
    """
    if can_fuse(x, taps):
        return fused_tap_sum(x, taps, before)
    n, offsets = x.shape[2], taps.shape[3]
    w = max(_LEAST_BLOCK, offsets)
    if taps.shape[2] == 1:
        band = skew(taps.expand(-1, -1, w, -1))[:, :, None]  # (_, h, 1, w, w + offsets − 1)
    else:
        band = skew(into_blocks(taps, w))  # (b, h, u, w, w + offsets − 1)
    runs = key_runs(x, w, before, offsets - 1 - before)  # (b, h, u, w + offsets − 1, d)
    return (band @ runs).flatten(2, 3)[:, :, :n]

"""Attention in which every block of queries reads a list of key blocks, each row its own.

    out of block u of row a: softmax over the keys of the blocks lists[a, u, :], −1 for none

The lists are data, not a pattern: rows of a batch may differ, and nothing is planned on the host.
Keys and values are gathered, so memory is that of the lists; a pattern that all rows share is
faster by `attend`. Letters beside the usual ones: u blocks, w tokens of a block, l list.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.dense.reference import expand_heads


def attend_lists(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor, lists: Tensor, block: int, dropout: float = 0.0
) -> Tensor:
    """q (b, h, n, d), k and v (b, g, n, d), valid (b, n), lists (b, u, l) -> (b, h, n, d).

    A block that is listed k times counts k times. A query that may read nothing returns 0.
    """
    n, heads = q.shape[2], q.shape[1]
    k, v = expand_heads(k, heads), expand_heads(v, heads)
    q, k, v = (_blocks(x, block) for x in (q, k, v))  # (b, h, u, w, d)
    real = F.pad(valid, (0, -n % block)).unflatten(1, (-1, block))  # (b, u, w)
    rows = torch.arange(len(q), device=q.device)[:, None, None]
    chosen = lists.clamp(min=0)  # (b, u, l)
    seen = (real[rows, chosen] & (lists >= 0)[..., None]).flatten(2)  # (b, u, l·w)
    k, v = (_gathered(x, chosen) for x in (k, v))  # (b·u, h, l·w, d)
    out = masked(q.transpose(1, 2).flatten(0, 1), k, v, seen.flatten(0, 1)[:, None, None], dropout)
    out = out.unflatten(0, chosen.shape[:2]).transpose(1, 2)  # (b, h, u, w, d)
    return out.flatten(2, 3)[:, :, :n]


def masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, dropout: float = 0.0) -> Tensor:
    """Dense attention by torch under a mask that broadcasts to (b, h, n, m); dead rows give 0."""
    dead = ~seen.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | dead, dropout_p=dropout)
    return out.masked_fill(dead, 0.0)


def _blocks(x: Tensor, block: int) -> Tensor:
    """(b, h, n, d) -> (b, h, u, w, d)."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % block)).unflatten(2, (-1, block))


def _gathered(x: Tensor, chosen: Tensor) -> Tensor:
    """Blocks (b, h, u, w, d) at lists (b, u, l) -> (b·u, h, l·w, d)."""
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    picked = x.transpose(1, 2)[rows, chosen]  # (b, u, l, h, w, d)
    return picked.transpose(2, 3).flatten(3, 4).flatten(0, 1)

"""Attention inside clusters of equal size, each of which takes the tokens nearest to it.

A token may be in several clusters (its outputs are averaged) or in none (its output is 0).
Letters: s clusters, w tokens of a cluster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.kernels.dense.reference import dense_attention
from weft.kernels.lsh.reformer import take_rows


def nearest_tokens(
    nearness: Tensor, length: Tensor, size: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """Nearness (b, h, n, s) -> the tokens of each cluster (b, h, s, w), and which of them count.

    A cluster takes `size` (b,) of the first `length` (b,) tokens of its row; `most` bounds `size`.
    """
    n = nearness.shape[2]
    padding = torch.arange(n, device=nearness.device) >= length[:, None]  # (b, n)
    nearness = nearness.masked_fill(padding[:, None, :, None], -torch.inf)
    tokens = nearness.transpose(-1, -2).topk(most).indices  # (b, h, s, w)
    taken = torch.minimum(size, length)[:, None]  # (b, 1)
    counts = torch.arange(most, device=tokens.device) < taken  # (b, w)
    return tokens, counts[:, None, None].expand_as(tokens)


def attend_clusters(
    q: Tensor, k: Tensor, v: Tensor, tokens: Tensor, counts: Tensor, *, scale: float, dropout: float
) -> Tensor:
    """q, k, v (b, h, n, d) inside the clusters (b, h, s, w) -> (b, h, n, d).

    No token reads itself, unless it is alone.
    """
    b, h, n, d = v.shape
    own = torch.eye(tokens.shape[-1], dtype=torch.bool, device=q.device)
    mask = counts[..., None, :] & ~own  # (b, h, s, w, w)
    near = take_rows(v, tokens)  # (b, h, s, w, d)
    y, lse = dense_attention(
        take_rows(q, tokens).flatten(1, 2),
        take_rows(k, tokens).flatten(1, 2),
        near.flatten(1, 2),
        mask=mask.flatten(1, 2),
        scale=scale,
        dropout=dropout,
    )  # (b, h·s, w, d), (b, h·s, w)
    y = torch.where(lse.isneginf()[..., None], near.flatten(1, 2), y).view_as(near)
    row = torch.arange(b * h, device=q.device).view(b, h, 1, 1) * n
    place, weight = (tokens + row).flatten(), counts.flatten()
    # index_put sums in a fixed order, also on a GPU.
    total = v.new_zeros(b * h * n, d).index_put(
        (place,), y.flatten(0, 3) * weight[:, None], accumulate=True
    )
    found = v.new_zeros(b * h * n).index_put((place,), weight.to(v.dtype), accumulate=True)
    return (total / found.clamp(min=1)[:, None]).view(b, h, n, d)

"""Adaptive input: the rarer a token, the narrower its row.

    e(v) = P_i T_i[v],    v in cluster i,  T_i (size, c / shrink^i),  P_i (c, c / shrink^i)

Every row starts with unit variance: T_i is N(0, 1), P_i is N(0, 1 / width).

Paper: Baevski, Auli 2018, https://arxiv.org/abs/1809.10853
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.layers.tables.clusters import Clusters


class AdaptiveTable(nn.Module):
    """Ids (b, n) -> (b, n, c)."""

    ranks: Tensor

    def __init__(self, places: Clusters, dim: int) -> None:
        super().__init__()
        self.places = places
        self.register_buffer("ranks", places.ranks(), persistent=False)
        widths = places.widths(dim)
        self.tables = nn.ParameterList(map(torch.randn, places.sizes, widths))
        self.waists = nn.ParameterList(torch.randn(dim, width) * width**-0.5 for width in widths)

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of these tokens; every cluster is read at every token, so shapes are static."""
        ranks = self.ranks[ids]  # (b, n)
        own = self.places.cluster_of(ranks)  # (b, n)
        rows = []
        for i, (table, waist) in enumerate(zip(self.tables, self.waists, strict=True)):
            place = (ranks - self.places.starts[i]).clamp(0, len(table) - 1)  # (b, n)
            row = F.embedding(place, table) * (own == i)[..., None]
            rows.append(F.linear(row, waist))  # (b, n, c)
        return sum(rows[1:], rows[0])

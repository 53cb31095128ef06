"""Clusters of tokens by frequency: wide rows for frequent ones, narrow rows for the rest.

    rank 0 … k₁ − 1 | k₁ … k₂ − 1 | …,    widths c, c / shrink, c / shrink², …

Ranks follow the ids, as in vocabularies that are sorted by frequency. Where they are not (bytes),
`frequent` lists the ids that come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from weft.errors import WeftError


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Which tokens are in which cluster."""

    vocab: int
    cutoffs: tuple[int, ...]
    shrink: int = 4
    frequent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        edges = (0, *self.cutoffs, self.vocab)
        if any(a >= b for a, b in pairwise(edges)):
            raise WeftError(
                "cutoffs rise from 1 to vocab − 1, each the first rank of a cluster; "
                f"got cutoffs={self.cutoffs} for vocab={self.vocab}"
            )
        if self.shrink < 1:
            raise WeftError(f"shrink divides the width of each next cluster; got {self.shrink}")
        known = all(0 <= token < self.vocab for token in self.frequent)
        if not known or len(set(self.frequent)) < len(self.frequent):
            raise WeftError(
                f"frequent lists ids below vocab={self.vocab}, each once; got {self.frequent}"
            )

    @property
    def starts(self) -> tuple[int, ...]:
        """The first rank of each cluster."""
        return (0, *self.cutoffs)

    @property
    def sizes(self) -> list[int]:
        """Tokens in each cluster."""
        return [b - a for a, b in pairwise((*self.starts, self.vocab))]

    def widths(self, dim: int) -> list[int]:
        """Channels of each cluster's rows, at least 1."""
        return [max(1, dim // self.shrink**i) for i in range(len(self.sizes))]

    def ids(self) -> Tensor:
        """The token at each rank: (vocab,)."""
        rest = sorted(set(range(self.vocab)) - set(self.frequent))
        return torch.tensor([*self.frequent, *rest])

    def ranks(self) -> Tensor:
        """The rank of each token: (vocab,)."""
        return self.ids().argsort()

    def cluster_of(self, ranks: Tensor) -> Tensor:
        """The number of the cluster in which each of these ranks lies."""
        return sum(((ranks >= edge).long() for edge in self.cutoffs), torch.zeros_like(ranks))

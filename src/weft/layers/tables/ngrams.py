"""Embeddings of n-grams: what a token is, and which tokens stand directly before it.

    e_i = (E[id_i] + Σ_n T_n[hash(id_(i−n+1), ..., id_i) mod buckets]) / √(1 + sizes)

A byte alone says little; with the two before it it is a piece of a word. n-grams are too many for
tables of their own, so each size n has `buckets` rows, and n-grams whose hashes agree share one.
Places before the first token count as 0, ids as id + 1. E and T_n start as N(0, 1), so e has unit
variance. Time O(n · sizes · c), parameters sizes · buckets · c.

Paper: Pagnoni et al. 2024, Byte Latent Transformer, section 3.2.1, https://arxiv.org/abs/2412.09871
Differs: the sum is divided by √(1 + sizes), which keeps its variance, and not by 1 + sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.padding import left_align, restore

_FACTOR, _PRIME = 1_000_003, 2**31 - 1  # of the polynomial hash: products stay below 2^52
LARGEST = 16  # tokens of an n-gram


class NgramTables(nn.Module):
    """Ids (b, n) and their own embeddings (b, n, c) -> (b, n, c)."""

    def __init__(self, sizes: tuple[int, ...], buckets: int, dim: int) -> None:
        super().__init__()
        self.sizes, self.buckets = sizes, buckets
        self.table = nn.Parameter(torch.randn(len(sizes) * buckets, dim))

    def forward(self, embedded: Tensor, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Add the n-grams that end at each token; padding is passed over where `valid` is given."""
        if valid is None:
            return self.scaled(embedded + self.grams(ids))
        moved, _, order = left_align(ids, valid)
        return self.scaled(embedded + restore(self.grams(moved), order, valid))

    def grams(self, ids: Tensor) -> Tensor:
        """The sum of the rows of every size: (b, n) -> (b, n, c)."""
        rows = [self.places(ids, size) + at * self.buckets for at, size in enumerate(self.sizes)]
        return torch.stack([F.embedding(own, self.table) for own in rows]).sum(0)

    def places(self, ids: Tensor, size: int) -> Tensor:
        """The bucket of the n-gram that ends at each token: (b, n)."""
        hashed = torch.zeros_like(ids)
        for back in reversed(range(size)):
            before = F.pad(ids + 1, (back, 0))[:, : ids.shape[1]]  # (b, n), 0 before the start
            hashed = (hashed * _FACTOR + before) % _PRIME
        return hashed % self.buckets

    def scaled(self, total: Tensor) -> Tensor:
        """Sums of 1 + sizes rows of unit variance, at unit variance."""
        return total * (1 + len(self.sizes)) ** -0.5


def check_ngrams(config: Any) -> None:
    """Refuse n-grams of an `Embedding` without a plain table, and sizes out of range."""
    sizes = config.ngrams
    if not sizes:
        return
    if config.channels is not None or config.rbf_levels or config.factor or config.cutoffs:
        raise WeftError(
            "ngrams are added to a plain table of tokens; leave out channels, rbf_levels, factor "
            f"and cutoffs, or ngrams; got ngrams={sizes}"
        )
    if len(set(sizes)) < len(sizes) or not 2 <= min(sizes) <= max(sizes) <= LARGEST:
        raise WeftError(f"ngrams are different sizes from 2 to {LARGEST} tokens; got {sizes}")
    if config.ngram_buckets < 1:
        raise WeftError(f"ngram_buckets is at least 1; got {config.ngram_buckets}")


def refuse_ngrams(sizes: tuple[int, ...], who: str) -> None:
    """Of what meets a sequence in pieces: the tokens before a piece are not at hand."""
    if sizes:
        raise WeftError(
            f"{who} embeds tokens without those before them, which ngrams={sizes} read; take "
            "ngrams=() there, or an Encoder that has the whole sequence"
        )

"""Inputs to model width: token ids or continuous channels, positions, and register tokens.

    e_i = table[id_i]  or  W x_i + b  or  W φ(id_i) + b,    plus nothing, sin/cos(p_i) or P[p_i]

p_i counts the real tokens before token i, so padding anywhere changes no position. The sinusoid is
sin and cos of p · 10000^(−2k/c) in channels 2k and 2k + 1 (Vaswani et al. 2017, section 3.5,
https://arxiv.org/abs/1706.03762); it works at any length, a learned table at most at its own.

φ is for ids that are levels on a scale, such as the brightness of a pixel: φ_k is a Gaussian bump
around the k-th of `rbf_levels` levels spread evenly over the scale, as wide as their spacing. Near
levels are then embedded alike, and a few rows learn what a table would learn level by level.

`factor` makes the table narrow and widens its rows, W F[id], which saves parameters where the
vocabulary is large (Lan et al. 2019, ALBERT, https://arxiv.org/abs/1909.11942). `cutoffs` give
frequent tokens wide rows and rare ones narrow rows (`weft.layers.tables.adaptive_table`).

`sum_norm` moves the widening behind the sum: tokens, types and positions are added at the width
`factor`, normalised, and then widened by a matrix with a bias, W norm(F[id] + P[p_i]) + b (ALBERT,
ELECTRA, FNet). `types` are kinds of tokens, such as the first and the second text of a pair: each
adds a learned row, chosen by the mark `types` (b, n), the first where no mark is given.

`categories` are for events of several columns: the first of the `channels` are codes, each with a
table of its own, and the others numbers (`weft.layers.tables.columns`). `ngrams` add rows for the
n tokens that end at each token (`weft.layers.tables.ngrams`).

Registers are learned vectors in front of every sequence, which the model removes again at the end:
the global tokens of ETC and BigBird-ETC, or a CLS token. They carry no position of their own.

Every term starts with standard deviation 1 (continuous inputs: if they have unit variance): as
large as what a sublayer adds to the stream at the start, so that neither dominates. A
language model that scores with the same table divides by √c (`weft.models.heads.language_model`).
Differs from the paper: its tokens start at c^(−1/2) and are scaled up by √c; its sinusoid has
amplitude 1, ours √2.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config import config
from weft.errors import WeftError
from weft.layers.marks import check_shape
from weft.layers.norm import Norm
from weft.layers.tables.adaptive_table import AdaptiveTable
from weft.layers.tables.clusters import Clusters
from weft.layers.tables.columns import ColumnTables
from weft.layers.tables.ngrams import NgramTables, check_ngrams, refuse_ngrams
from weft.layers.tables.sinusoid import sinusoid

INITIAL_STD = 1.0


@config
class Embedding:
    """What enters a model: ids below `vocab`, or vectors of `channels` numbers.

    Exactly one is given before it is built; a settings file leaves both to the task.
    """

    vocab: int | None = None
    channels: int | None = None
    positions: Literal["none", "sinusoidal", "learned"] = "none"
    rbf_levels: int | None = None  # ids are levels on a scale: radial basis functions, no table
    registers: int = 0  # learned tokens put in front of each sequence
    factor: int | None = None  # width of the table, whose rows are then widened; None: the model's
    cutoffs: tuple[int, ...] = ()  # adaptive input: first ranks of the clusters after the first
    shrink: int = 4  # each cluster is this many times narrower than the one before
    frequent: tuple[int, ...] = ()  # ids that come first in rank; the others in order of id
    types: int = 0  # kinds of tokens, each of which adds a row; 0: there are none
    multiplier: float = 1.0  # of token rows, before positions and types are added
    sum_norm: Norm | None = None  # with a factor: on the sum, which is then widened with a bias
    ngrams: tuple[int, ...] = ()  # sizes of n-grams whose rows are added; encoders only
    ngram_buckets: int = 2**14  # rows of each size, found by a hash
    # Of events: channel i, below their number, holds codes 0 to categories[i] − 1.
    categories: tuple[int, ...] = ()
    category_width: int = 16  # of each row of the tables of categories

    def __post_init__(self) -> None:
        if self.vocab is not None and self.channels is not None:
            raise self._both()
        if min(self.vocab or 1, self.channels or 1) < 1 or 0 in (self.vocab, self.channels):
            raise WeftError(
                "vocab or channels is at least 1; "
                f"got vocab={self.vocab} and channels={self.channels}"
            )
        levels = self.rbf_levels
        if levels is not None and (self.channels or not 2 <= levels <= (self.vocab or levels)):
            raise WeftError(
                "rbf_levels embed ids that are levels on a scale: 2 to vocab of them; "
                f"got rbf_levels={levels}, vocab={self.vocab}"
            )
        if self.registers < 0:
            raise WeftError(f"registers counts learned tokens, 0 or more; got {self.registers}")
        if self.types < 0:
            raise WeftError(f"types counts kinds of tokens, 0 or more; got types={self.types}")
        if self.sum_norm is not None and self.factor is None:
            raise WeftError(
                "sum_norm stands between a narrow table and the model's width: give factor=, or "
                "take Norm(enters=True) of the stack for a norm at the model's width"
            )
        self._check_table()
        check_ngrams(self)
        self._check_categories()

    def _check_categories(self) -> None:
        if not self.categories:
            return
        if self.vocab is not None or len(self.categories) > (self.channels or len(self.categories)):
            raise WeftError(
                "categories are the first of the channels of events; got "
                f"{len(self.categories)} categories, channels={self.channels}, vocab={self.vocab}"
            )
        if min(*self.categories, self.category_width) < 1:
            raise WeftError(
                "categories and category_width are at least 1; got "
                f"{self.categories} and {self.category_width}"
            )

    def _check_table(self) -> None:
        chosen = [self.rbf_levels is not None, self.factor is not None, bool(self.cutoffs)]
        if sum(chosen) > 1 or (any(chosen) and self.channels is not None):
            raise WeftError(
                "tokens are embedded by levels, by a factorised table or by an adaptive one, one "
                f"of them; got rbf_levels={self.rbf_levels}, factor={self.factor}, "
                f"cutoffs={self.cutoffs}, vocab={self.vocab}"
            )
        if self.factor is not None and self.factor < 1:
            raise WeftError(f"factor is the width of the table, at least 1; got {self.factor}")
        if self.frequent and not self.cutoffs:
            raise WeftError("frequent orders the tokens of clusters; give cutoffs, or drop it")
        if self.cutoffs and self.vocab is not None:
            self.clusters()

    def _both(self) -> WeftError:
        return WeftError(
            "inputs are token ids (vocab=...) or vectors (channels=...), exactly one of them; "
            f"got vocab={self.vocab} and channels={self.channels}"
        )

    def clusters(self) -> Clusters:
        """Which tokens are in which cluster of an adaptive input."""
        assert self.vocab is not None  # checked: clusters are of tokens
        return Clusters(
            vocab=self.vocab, cutoffs=self.cutoffs, shrink=self.shrink, frequent=self.frequent
        )

    def build(self, dim: int, length: int | None = None) -> Embedder:
        """The module for this width; `length` is the longest sequence, for learned positions."""
        if self.vocab is None and self.channels is None:
            raise self._both()
        return Embedder(self, dim, length)


class Embedder(nn.Module):
    """Ids (b, n) or vectors (b, n, channels) -> (b, n, c); `registers` is (g, c)."""

    # Set where sequences are split over processes: where the tokens stand (weft.scale.context).
    shards: Any = None

    def __init__(self, config: Embedding, dim: int, length: int | None) -> None:
        super().__init__()
        self.config, self.dim = config, dim
        # Of what is added: the table's, where the sum is widened.
        self.width = config.factor if config.sum_norm is not None and config.factor else dim
        self.length: int | None = None
        if config.cutoffs:
            self.clusters = AdaptiveTable(config.clusters(), dim)
        elif config.vocab is not None and config.rbf_levels is None:
            self.table = nn.Parameter(_normal(config.vocab, config.factor or dim))
            if config.sum_norm is not None:
                assert config.factor is not None  # checked
                self.norm = config.sum_norm.build(config.factor)
                self.widen = nn.Linear(config.factor, dim)
            elif config.factor is not None:
                self.waist = nn.Parameter(_normal(dim, config.factor) * config.factor**-0.5)
        elif config.categories:
            assert config.channels is not None  # checked: vocab or channels is given
            self.columns = ColumnTables(
                config.categories, config.channels, config.category_width, dim
            )
        else:
            inputs = config.rbf_levels or config.channels
            assert inputs is not None  # checked: vocab or channels is given
            self.linear = nn.Linear(inputs, dim)
            # Bumps as wide as their spacing: the squares of their heights add up to √π.
            total = inputs if config.rbf_levels is None else math.sqrt(math.pi)
            nn.init.normal_(self.linear.weight, std=INITIAL_STD * total**-0.5)
            nn.init.zeros_(self.linear.bias)
        if config.positions == "learned":
            if length is None:
                raise WeftError(
                    "learned positions are a table as long as the longest sequence; give "
                    "Frame(length=...), or take positions='sinusoidal', which has no limit"
                )
            self.length = length
            self.positions = nn.Parameter(_normal(length, self.width))
        if config.types:
            self.types = nn.Parameter(_normal(config.types, self.width))
        if config.ngrams:
            self.grams = NgramTables(config.ngrams, config.ngram_buckets, dim)
        settings = (config.types, config.ngrams, config.multiplier, config.sum_norm)
        self.plain = settings == (0, (), 1.0, None)
        # None rather than an empty parameter, which optimisers and files would store for nothing.
        self.registers = nn.Parameter(_normal(config.registers, dim)) if config.registers else None

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        start: int = 0,
        aligned: bool = False,
        types: Tensor | None = None,
    ) -> Tensor:
        """Embed a sequence whose first real token has position `start`, without registers.

        `aligned`: real tokens come first in each row, so that their indices are their positions.
        `types` (b, n) are the kinds of the tokens, where the config has several.
        """
        embedded = self.tokens(x, valid)  # (b, n, c)
        if self.config.ngrams:
            refuse_ngrams(self.config.ngrams if start or self.shards else (), "a piece")
            embedded = self.grams(embedded, self.ids(x, valid), None if aligned else valid)
        if self.config.multiplier != 1.0:
            embedded = embedded * self.config.multiplier
        if self.config.types:
            embedded = embedded + self.kinds(x, valid, types)
        added = self.places(x, valid, start, aligned)  # (n, c) or (b, n, c)
        if added is not None:
            embedded = embedded + added.to(embedded.dtype)
        return embedded if self.config.sum_norm is None else self.widen(self.norm(embedded))

    def kinds(self, x: Tensor, valid: Tensor | None, types: Tensor | None) -> Tensor:
        """What the kinds of tokens add: (c), or (b, n, c)."""
        if types is None:
            return self.types[0]
        check_shape("types", types, tuple(x.shape[:2]))
        types = types if valid is None else types.masked_fill(~valid, 0)
        if types.device.type == "cpu" and types.numel():
            low, high = int(types.min()), int(types.max())
            if low < 0 or high >= self.config.types:
                raise WeftError(f"types run from 0 to {self.config.types - 1}; got {low} to {high}")
        return F.embedding(types.long(), self.types)

    def with_registers(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        aligned: bool = False,
        types: Tensor | None = None,
    ) -> Tensor:
        """Registers, which have no positions, and tokens: (b, g + n, c)."""
        config, b = self.config, len(x)
        assert self.registers is not None
        table = config.vocab is not None and not (
            config.rbf_levels or config.factor or config.cutoffs
        )
        if not table or not self.plain:
            tokens = self(x, valid=valid, aligned=aligned, types=types)
            return torch.cat((self.registers.expand(b, -1, -1), tokens), dim=1)
        # Registers as further rows of the table: the long tensor is written once, not copied.
        assert config.vocab is not None
        own = config.vocab + torch.arange(config.registers, device=x.device)
        ids = torch.cat((own.expand(b, -1), self.ids(x, valid)), dim=1)  # (b, g + n)
        embedded = F.embedding(ids, torch.cat((self.table, self.registers)))
        added = self.places(x, valid, 0, aligned)
        if added is None:
            return embedded
        return embedded + F.pad(added.to(embedded.dtype), (0, 0, config.registers, 0))

    def tokens(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """What is embedded, without positions: (b, n) or (b, n, channels) -> (b, n, c)."""
        if self.config.vocab is not None:
            return self.rows(self.ids(x, valid))
        self.check(x, valid)
        if self.config.categories:
            return self.columns(x if valid is None else x.masked_fill(~valid[..., None], 0.0))
        return self.linear(x)

    def ids(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Ids (b, n) that are in the vocabulary, whatever padding holds."""
        self.check(x, valid)
        ids = x if valid is None else x.masked_fill(~valid, 0)
        # Reading the extremes would stall a GPU at every call; there the kernel itself asserts.
        if ids.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check_ids(ids)
        return ids.long()

    def places(self, x: Tensor, valid: Tensor | None, start: int, aligned: bool) -> Tensor | None:
        """What positions add: (n, c), or (b, n, c) where rows differ; None: nothing."""
        kind, stop = self.config.positions, start + x.shape[1]
        if kind == "none":
            return None
        if self.shards is not None and self.shards.reading:
            index = self.shards.places(x.shape[1])  # (n,), on the host
            self.check_length(int(index.max()) + 1)
            return self._places_at(index.to(x.device))
        if kind == "learned":
            assert self.length is not None
            if self.length < stop:  # only real tokens count; padding may be longer
                self.check_length(stop if valid is None else start + int(valid.sum(1).max()))
            elif valid is None or aligned:
                return self.positions[start:stop]  # a slice: no gather in either pass
        if valid is None or aligned:
            index = torch.arange(start, stop, device=x.device)
        else:
            index = start + (valid.long().cumsum(1) - 1).clamp(min=0)  # (b, n)
        return self._places_at(index.clamp(max=len(self.positions) - 1) if self.length else index)

    def _places_at(self, index: Tensor) -> Tensor:
        """What the positions (...) add: (..., c)."""
        if self.config.positions == "sinusoidal":
            return sinusoid(index, self.width) * INITIAL_STD * 2**0.5
        return self.positions[index]

    def rows(self, ids: Tensor) -> Tensor:
        """The embeddings of these tokens, without positions: (b, n) -> (b, n, c)."""
        if self.config.cutoffs:
            return self.clusters(ids)
        if self.config.rbf_levels is not None:
            return self.linear(self.heights(ids))
        rows = F.embedding(ids, self.table)  # (b, n, factor or c)
        widened = self.config.factor is None or self.config.sum_norm is not None
        return rows if widened else F.linear(rows, self.waist)

    def share(self, other: Embedder) -> None:
        """Use the token tables of another embedder."""
        names = ("vocab", "rbf_levels", "factor", "cutoffs", "shrink", "frequent", "categories")
        kind = operator.attrgetter(*names, "ngrams", "ngram_buckets")
        if kind(self.config) != kind(other.config):
            raise WeftError(
                "embeddings that share their tokens are of one kind; "
                f"got {self.config} and {other.config}"
            )
        # Without the norm, which is its own.
        for name in ("table", "waist", "clusters", "linear", "columns", "grams"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))

    def heights(self, ids: Tensor) -> Tensor:
        """How high each bump is at these levels: (b, n) -> (b, n, rbf_levels)."""
        levels, vocab = self.config.rbf_levels, self.config.vocab
        assert levels is not None
        assert vocab is not None
        level = ids.to(self.linear.weight.dtype) * ((levels - 1) / (vocab - 1))  # (b, n)
        centres = torch.arange(levels, device=ids.device, dtype=level.dtype)
        return torch.exp(-0.5 * (level[..., None] - centres) ** 2)

    def check_length(self, tokens: int) -> None:
        """Refuse a sequence longer than the learned positions."""
        if self.length is not None and tokens > self.length:
            raise WeftError(
                f"the sequence has {tokens} tokens, but there are learned positions for "
                f"{self.length}; shorten it, or build with a larger Frame(length=...)"
            )

    def check_ids(self, ids: Tensor) -> None:
        """Refuse ids outside the vocabulary."""
        vocab = self.config.vocab
        assert vocab is not None
        low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
        if low < 0 or high >= vocab:
            raise WeftError(
                f"ids run from 0 to vocab − 1 = {vocab - 1}; got {low if low < 0 else high}. "
                "Mark padding with valid= rather than with a special id"
            )

    def check(self, x: Tensor, valid: Tensor | None = None) -> None:
        """Refuse inputs of another kind or shape, and a `valid` that does not fit them."""
        tokens = self.config.vocab is not None
        integers = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
        if tokens and (x.dim() != 2 or not integers):
            raise WeftError(
                f"token ids are integers (batch, length); got {x.dtype} {tuple(x.shape)}"
            )
        if not tokens and (x.dim() != 3 or x.shape[-1] != self.config.channels or integers):
            raise WeftError(
                f"inputs are real numbers (batch, length, {self.config.channels}); "
                f"got {x.dtype} {tuple(x.shape)}"
            )
        if valid is not None and (valid.dtype != torch.bool or valid.shape != x.shape[:2]):
            raise WeftError(
                f"valid is a boolean (batch, length) = {tuple(x.shape[:2])}, True where a token "
                f"is real; got {valid.dtype} {tuple(valid.shape)}"
            )


def _normal(rows: int, dim: int) -> Tensor:
    return torch.randn(rows, dim) * INITIAL_STD

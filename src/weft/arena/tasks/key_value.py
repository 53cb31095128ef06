"""Key-value retrieval by position ("lost in the middle"), for models trained from scratch.

    k7 k2 v5   k1 k9 v3   k4 k4 v5   ?   k1 k9      ->  class 3

A document holds pairs of a key (a few symbols) and a value (one symbol); after them stands a key of
one pair, and the class is its value. Scores are reported by where in the document that pair is.
Keys of validation and test documents are strings that no training document holds, so the answer has
to be read, not remembered. Test documents are a function of the seed and the form of the documents,
not of the size of the training set.

Paper: Liu et al. 2023, Lost in the Middle, https://arxiv.org/abs/2307.03172, section 3
Differs from it: symbols instead of UUIDs, one value token instead of 36 characters, and a trained
classifier instead of a prompted language model; `key_value_uuid` has the published documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from weft.arena.data.draws import below, bits
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks.base import TASKS, Split, majority
from weft.errors import WeftError

BUCKETS = 10  # groups of positions, at most
_SHARES = {"train": range(8), "valid": range(8, 9), "test": range(9, 10)}  # tenths of all keys
_MOST_KEYS = 1 << 24


@TASKS.register("key_value")
@dataclass(frozen=True, kw_only=True)
class KeyValue:
    """Find the value that a document gives to the key that its end queries."""

    pairs: int = 32
    key: int = 2  # symbols of a key
    symbols: int = 64  # different symbols in keys
    values: int = 64  # different values
    query_first: bool = False  # the queried key also comes before the pairs
    train: int = 50_000
    valid: int = 2_000
    test: int = 2_000
    seed: int = 0

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"

    def __post_init__(self) -> None:
        if min(self.pairs, self.key, self.train, self.valid, self.test) < 1:
            raise WeftError(f"pairs, key, train, valid and test are at least 1; got {self}")
        if min(self.symbols, self.values) < 2:
            raise WeftError(f"symbols and values are at least 2; got {self}")
        if self.symbols**self.key > _MOST_KEYS:
            raise WeftError(
                f"at most {_MOST_KEYS:,} different keys; got {self.symbols} symbols in {self.key} "
                "places: lower symbols or key"
            )

    @property
    def length(self) -> int:
        """Tokens of a document; all are equally long."""
        return self.pairs * (self.key + 1) + (1 + self.query_first) * (1 + self.key)

    @property
    def vocab(self) -> int:
        """Symbols of keys, then values, then the mark of the question."""
        return self.symbols + self.values + 1

    @property
    def classes(self) -> int:
        """One for each value."""
        return self.values

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        return f"key-value pairs, own generator, seed {self.seed}"

    def load(self, split: Split) -> Examples:
        """Documents and the queried values; groups are positions of the pair."""
        rows = getattr(self, split)
        stream = bits(self.seed, list(_SHARES).index(split))
        keys = _distinct(self._keys(split), rows, self.pairs, stream)  # (rows, pairs)
        values = below(stream, (rows, self.pairs), self.values)
        gold = below(stream, (rows,), self.pairs)
        every = np.arange(rows)
        tokens = self._written(keys, values, keys[every, gold])
        starts = np.arange(rows + 1) * self.length
        groups, names = buckets(gold, self.pairs)
        return Examples(
            TokenRows(tokens.ravel(), starts),
            self.length,
            labels=values[every, gold],
            groups=groups,
            group_names=names,
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent class, and a value drawn from the document."""
        train, test = self.load("train"), self.load("test")
        values = self._pairs(test.rows.tokens.reshape(len(test), self.length))[..., -1]
        return {
            "majority class": majority(train, test),
            "a value of the document": float(
                (values.astype(int) - self.symbols == test.classes[:, None]).mean()
            ),
        }

    def show(self, row: np.ndarray) -> str:
        """Symbols of keys as k7, values as v5, the mark of the question as ?."""
        words = [
            f"v{token - self.symbols}" if token >= self.symbols else f"k{token}"
            for token in row.astype(int)
        ]
        return " ".join("?" if word == f"v{self.values}" else word for word in words)

    def _keys(self, split: Split) -> np.ndarray:
        """Numbers of the keys of a split: a fixed random share of all keys."""
        tenth = below(bits(self.seed, len(_SHARES)), (self.symbols**self.key,), 10)
        found = np.flatnonzero(np.isin(tenth, _SHARES[split]))
        if len(found) < self.pairs:
            raise WeftError(
                f"{self} has {len(found)} different keys for its {split} documents and needs "
                f"{self.pairs}; raise symbols or key"
            )
        return found

    def _written(self, keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """(rows, length) tokens of documents."""
        rows = len(keys)
        pairs = np.concatenate([self._spelt(keys), values[..., None] + self.symbols], axis=-1)
        mark = np.full((rows, 1), self.vocab - 1)
        question = np.concatenate([mark, self._spelt(asked)], axis=1)
        parts = [question, pairs.reshape(rows, -1), question]
        kind = np.uint8 if self.vocab <= 256 else np.uint32
        return np.concatenate(parts[0 if self.query_first else 1 :], axis=1).astype(kind)

    def _spelt(self, keys: np.ndarray) -> np.ndarray:
        """(..., key) the symbols of keys given by number."""
        powers = self.symbols ** np.arange(self.key)
        return keys[..., None] // powers % self.symbols

    def _pairs(self, documents: np.ndarray) -> np.ndarray:
        """(rows, pairs, key + 1) the pairs of whole documents."""
        first = (1 + self.key) * self.query_first
        return documents[:, first : first + self.pairs * (self.key + 1)].reshape(
            len(documents), self.pairs, self.key + 1
        )


def buckets(places: np.ndarray, pairs: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Groups of places 0 to pairs − 1, about equally wide, and their names."""
    edges = np.linspace(0, pairs, min(pairs, BUCKETS) + 1).round().astype(int)
    names = tuple(
        f"pair {a}" if b - a == 1 else f"pairs {a} to {b - 1}" for a, b in pairwise(edges)
    )
    return np.searchsorted(edges, places, side="right") - 1, names


def _distinct(pool: np.ndarray, rows: int, count: int, stream: np.random.PCG64) -> np.ndarray:
    """(rows, count) members of the pool, none twice in a row.

    Repeats are drawn again until there are none; no member is treated otherwise than another, so
    all choices are equally likely.
    """
    # Small numbers sort faster.
    kind = np.uint16 if len(pool) < 1 << 16 else np.uint32
    chosen = below(stream, (rows, count), len(pool)).astype(kind)
    unsettled = np.arange(rows)
    while len(unsettled):
        part = chosen[unsettled]
        order = np.argsort(part, axis=1, kind="stable")
        in_order = np.take_along_axis(part, order, axis=1)
        again = np.zeros(part.shape, dtype=bool)
        np.put_along_axis(again, order[:, 1:], in_order[:, 1:] == in_order[:, :-1], axis=1)
        part[again] = below(stream, (int(again.sum()),), len(pool))
        chosen[unsettled] = part
        unsettled = unsettled[again.any(axis=1)]
    return pool[chosen]

"""Reversal: write a sequence backwards. The smallest task that sequence-to-sequence models learn.

    3 1 4 1 5  ->  5 1 4 1 3

Lengths are drawn evenly from 1 to `length`. No test sequence of four tokens or more stands in the
training split, save by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft.arena.data.draws import below, bits
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.errors import WeftError


@TASKS.register("reversal")
@dataclass(frozen=True, kw_only=True)
class Reversal:
    """Write a random sequence backwards."""

    length: int = 16
    symbols: int = 16  # different tokens
    train: int = 20_000
    valid: int = 1_000
    test: int = 1_000
    seed: int = 0

    kind: ClassVar = "translate"
    metric: ClassVar = "token accuracy"
    classes: ClassVar = 0

    def __post_init__(self) -> None:
        if min(self.length, self.train, self.valid, self.test) < 1 or self.symbols < 2:
            raise WeftError(
                f"length, train, valid and test are at least 1 and symbols at least 2; got {self}"
            )

    @property
    def vocab(self) -> int:
        """The symbols."""
        return self.symbols

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        return f"random sequences and their reversals, own generator, seed {self.seed}"

    def load(self, split: Split) -> Examples:
        """Sequences, and the same backwards."""
        rows = getattr(self, split)
        stream = bits(self.seed, SPLITS.index(split))
        sizes = 1 + below(stream, (rows,), self.length)
        tokens = below(stream, (rows, self.length), self.symbols).astype(np.int32)
        ahead = [row[:size] for row, size in zip(tokens, sizes, strict=True)]
        back = [row[::-1] for row in ahead]
        return Examples(TokenRows.of(ahead), self.length, second=TokenRows.of(back))

    def baselines(self) -> dict[str, float]:
        """Token accuracy, ends included: any symbol, with the end known; and copying."""
        test = self.load("test")
        sizes = test.rows.lengths
        total = (sizes + 1).sum()
        pairs = zip((test.rows[i] for i in range(len(test))), range(len(test)), strict=True)
        same = sum(int((row == test.others[i]).sum()) for row, i in pairs)
        return {
            "one symbol": float((sizes.sum() / self.symbols + len(sizes)) / total),
            "copying": float((same + len(sizes)) / total),
        }

    def show(self, row: np.ndarray) -> str:
        """The numbers of the symbols."""
        return " ".join(map(str, row.tolist()))

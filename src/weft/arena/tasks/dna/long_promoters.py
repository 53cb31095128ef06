"""Long promoters: made-up sequences whose motifs stand in the right order and distance, or not.

Every sequence of `length` bases holds `groups` groups of the same four motifs; a promoter has one
group in the right order at the right distances (`weft.dna.grammar`). Counting motifs, or bases,
tells nothing. The best possible accuracy is that of the true probability, among the baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from weft.arena.data.cache import Arrays, cached
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.dna.base import DnaTask
from weft.dna.bases import Kmers
from weft.dna.grammar import ROOM, VERSION, draw_sequence, log_odds
from weft.errors import WeftError
from weft.objectives.batch import Batch

SCORED = 200  # test sequences that the best possible accuracy is measured on
SPACING = 1 << 32  # between the numbers of two splits' sequences
FRESH = 3 * SPACING  # beyond the sequences of any split


@TASKS.register("long_promoters")
@dataclass(frozen=True, kw_only=True)
class LongPromoters(DnaTask):
    """Find a group of motifs in the right order among wrong ones, in 4,096 bases."""

    bases: int = 4_096
    groups: int = 4  # of motifs in each sequence, one of which is right in a promoter
    noise: float = 0.05  # probability that a base of a motif is replaced by a random one
    train: int = 8_000  # sequences
    valid: int = 1_000
    test: int = 1_000
    fresh: bool = False  # training draws new sequences for ever

    classes: ClassVar = 2
    labels: ClassVar = ("other", "promoter")
    text: ClassVar = "sequence"

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.groups, self.train, self.valid, self.test) < 1 or not 0 <= self.noise < 1:
            raise WeftError(
                "groups, train, valid and test are at least 1, noise is a probability below 1; got "
                f"{self.groups}, {self.train}, {self.valid}, {self.test} and {self.noise}"
            )
        if self.bases // self.groups < ROOM:
            raise WeftError(
                f"a group needs {ROOM} bases; got {self.bases} for {self.groups} groups: take "
                "more bases or fewer groups"
            )

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.kmers.count(self.bases)

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        return (
            f"made-up promoters, version {VERSION}, {self.bases:,} bases, {self.groups} groups, "
            f"a base off with probability {self.noise}, seed {self.seed}"
        )

    def load(self, split: Split) -> Examples:
        """One split, always the same for the same settings."""
        found = self._drawn(split)
        rows = TokenRows.of([self.kmers.tokens(row) for row in found["bases"]])
        return Examples(rows, self.length, labels=found["labels"])

    def stream(self, batch_size: int) -> FreshPromoters | None:
        """New sequences in every batch, where `fresh` asks for them."""
        return FreshPromoters(self, batch_size) if self.fresh else None

    def baselines(self) -> dict[str, float]:
        """What no model can beat, the most frequent class, and the share of G and C."""
        found = self._drawn("test")
        count = min(self.test, SCORED)
        odds = [log_odds(row, self.groups, self.noise) for row in found["bases"][:count]]
        best = (np.array(odds) > 0) == found["labels"][:count]
        return {"the true probability": float(best.mean()), **super().baselines()}

    def drawn(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bases (n, bases) and classes (n,) of the sequences of these numbers."""
        found = np.empty((len(numbers), self.bases), dtype=np.uint8)
        labels = np.empty(len(numbers), dtype=np.int64)
        for place, number in enumerate(numbers):
            rng = np.random.Generator(np.random.PCG64([self.seed, VERSION, int(number)]))
            labels[place] = rng.integers(2)
            found[place] = draw_sequence(
                int(labels[place]), self.bases, self.groups, self.noise, rng
            )
        return found, labels

    def _drawn(self, split: Split) -> Arrays:
        settings = {
            "version": VERSION,
            "split": split,
            "count": getattr(self, split),
            **{name: getattr(self, name) for name in ("bases", "groups", "noise", "seed")},
        }

        def build(_: object) -> Arrays:
            first = SPLITS.index(split) * SPACING
            found, labels = self.drawn(first + np.arange(getattr(self, split)))
            return {"bases": found, "labels": labels}

        return cached("long_promoters", settings, build)


@dataclass(frozen=True, eq=False)
class FreshPromoters:
    """A source of batches of sequences that were never seen."""

    task: LongPromoters
    batch_size: int

    def __str__(self) -> str:
        return f"fresh {self.task.source}, in batches of {self.batch_size}"

    def batch(self, step: int) -> Batch:
        """The sequences of this step."""
        first = FRESH + step * self.batch_size
        found, labels = self.task.drawn(first + np.arange(self.batch_size))
        ids = tokens_of(self.task.kmers, found)
        return Batch(x=torch.from_numpy(ids), y=torch.from_numpy(labels))


def tokens_of(kmers: Kmers, found: np.ndarray) -> np.ndarray:
    """Ids (b, tokens) int64 of bases (b, n)."""
    return np.stack([kmers.tokens(row) for row in found]).astype(np.int64)

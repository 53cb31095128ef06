"""What tasks on DNA have in common: bases or k-mers as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft.arena.data.examples import Examples
from weft.arena.tasks.base import Split, majority
from weft.dna.bases import UNKNOWN, Kmers, letters_of


@dataclass(frozen=True, kw_only=True)
class DnaTask:
    """Classify sequences of bases."""

    k: int = 1  # bases of a token
    step: int = 1  # bases from one token to the next: 1 to k
    seed: int = 0  # of the splits, or of what is drawn

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"

    def __post_init__(self) -> None:
        self.kmers  # noqa: B018  # checks k and step

    @property
    def kmers(self) -> Kmers:
        """How bases become tokens."""
        return Kmers(k=self.k, step=self.step)

    @property
    def vocab(self) -> int:
        """The k-mers, and one for those with an unknown base."""
        return self.kmers.vocab

    @property
    def tokens(self) -> str:
        """How a sequence becomes inputs, for the model's record."""
        return f"bases(k={self.k}, step={self.step})"

    def load(self, split: Split) -> Examples:
        """One split."""
        raise NotImplementedError

    def baselines(self) -> dict[str, float]:
        """The most frequent class, and a threshold on the share of G and C."""
        train, test = self.load("train"), self.load("test")
        found = {"majority class": majority(train, test)}
        if len(np.unique(train.classes)) == 2:
            found["share of G and C"] = _by_share(self.kmers, train, test)
        return found

    def show(self, row: np.ndarray) -> str:
        """The bases."""
        return letters_of(self.kmers.bases(row))


def _by_share(kmers: Kmers, train: Examples, test: Examples) -> float:
    """Accuracy of the best threshold on training's share of G and C, in its better direction."""
    from weft.arena.tasks.base import best_threshold

    own, new = (_shares(kmers, each) for each in (train, test))
    scores = []
    for sign in (1.0, -1.0):
        at = best_threshold(sign * own, train.classes)
        fit = ((sign * own >= at) == train.classes).mean()
        scores.append((fit, ((sign * new >= at) == test.classes).mean()))
    return float(max(scores)[1])


def _shares(kmers: Kmers, examples: Examples) -> np.ndarray:
    found = []
    for row in examples.rows:
        own = kmers.bases(row)
        known = own[own != UNKNOWN]
        found.append(np.isin(known, (1, 2)).mean() if len(known) else 0.5)
    return np.array(found)

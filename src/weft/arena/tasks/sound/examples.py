"""Sounds of a split as batches, and as they are changed in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch

from weft.objectives.batch import Batch
from weft.sound.augment import Augment
from weft.sound.samples import standardised
from weft.training.data.source import Shuffled

WIDTHS = 8  # widths of batches that are changed anew: multiples of the length over this


class Recordings(NamedTuple):
    """Sounds one after another and their classes: sound i is samples[starts[i] : starts[i + 1]]."""

    samples: np.ndarray  # (total,) int16
    starts: np.ndarray  # (sounds + 1,) int64
    labels: np.ndarray  # (sounds,) int64

    def chosen(self, index: np.ndarray) -> Recordings:
        """These sounds alone, in this order."""
        parts = [self.samples[self.starts[i] : self.starts[i + 1]] for i in index]
        return joined(parts, self.labels[index])


def joined(parts: list[np.ndarray], labels: np.ndarray) -> Recordings:
    """From separate sounds."""
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    samples = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)
    return Recordings(samples, starts, labels.astype(np.int64))


@dataclass(frozen=True, eq=False)
class SoundExamples:
    """Sounds and their classes; rows are samples of unit variance, (n, 1) each."""

    sounds: Recordings
    length: int
    fixed: bool = False  # every batch is padded to `length`
    groups: None = None
    group_names: tuple[str, ...] = ()
    second: None = None  # rows are no pairs

    def __len__(self) -> int:
        return len(self.sounds.labels)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all samples and classes."""
        found = blake2b(digest_size=8)
        for array in self.sounds:
            found.update(np.ascontiguousarray(array).view(np.uint8).data)
        return found.hexdigest()

    @property
    def rows(self) -> SoundExamples:
        """The sounds of each row."""
        return self

    @property
    def labels(self) -> np.ndarray:
        """(rows,) classes."""
        return self.sounds.labels

    @property
    def classes(self) -> np.ndarray:
        """The same."""
        return self.sounds.labels

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) samples that are read of each."""
        return np.minimum(np.diff(self.sounds.starts), self.length)

    def __getitem__(self, row: int) -> np.ndarray:
        """(n, 1) of one sound."""
        return standardised(self.cut(row))[:, None]

    def cut(self, row: int) -> np.ndarray:
        """(n,) int16 samples of one sound that are read."""
        start, stop = self.sounds.starts[row : row + 2]
        return self.sounds.samples[start : min(stop, start + self.length)]

    def batch(self, index: np.ndarray) -> Batch:
        """The rows of these numbers, on the CPU."""
        return self.made(index, lambda sound, _: sound, self.length if self.fixed else None)

    def made(
        self,
        index: np.ndarray,
        change: Callable[[np.ndarray, int], np.ndarray],
        width: int | None,
        multiple: int = 1,
    ) -> Batch:
        """Rows after `change` (of a sound and its place in the batch), padded on the right."""
        sounds = [
            change(standardised(self.cut(row)), place)[: self.length]
            for place, row in enumerate(index)
        ]
        sizes = np.array([len(sound) for sound in sounds])
        n = width or min(-(-int(sizes.max()) // multiple) * multiple, self.length)
        x = np.zeros((len(sounds), n, 1), dtype=np.float32)
        for place, sound in enumerate(sounds):
            x[place, : len(sound), 0] = sound
        real = np.arange(n) < sizes[:, None]  # (b, n)
        valid = None if width is None and real.all() else torch.from_numpy(real)
        return Batch(x=torch.from_numpy(x), valid=valid, y=torch.from_numpy(self.labels[index]))


@dataclass(frozen=True, eq=False)
class Changing:
    """A source of batches whose sounds are changed anew each time."""

    rows: SoundExamples
    batch_size: int
    augment: Augment
    rate: int
    seed: int

    def __str__(self) -> str:
        return f"{len(self.rows)} sounds, changed by {self.augment}, seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """A hash of the sounds."""
        return self.rows.fingerprint

    def batch(self, step: int) -> Batch:
        """The batch of this step, from 0: a function of the seed and the step alone."""
        index = Shuffled(self.rows, self.batch_size, self.seed).index(step)
        rng = np.random.Generator(np.random.PCG64([self.seed, step]))

        def change(sound: np.ndarray, _: int) -> np.ndarray:
            return self.augment.apply(sound, self.rate, rng)

        return self.rows.made(index, change, None, -(-self.rows.length // WIDTHS))

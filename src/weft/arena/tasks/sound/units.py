"""Units of sound: k-means of the cepstral coefficients of the training sounds, one for each frame.

    centres      k-means of mfcc(training sounds)                       (`weft.sound.spectrum`)
    unit of i    the nearest centre to the coefficients of the 10 ms whose middle is nearest to the
                 middle of what frame i of the model has seen

The objective `masked_units` predicts them. Centres are kept in the cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from weft.arena.data.cache import cached
from weft.arena.data.draws import below, bits
from weft.arena.data.kmeans import kmeans, nearest
from weft.arena.tasks.sound.base import SoundTask
from weft.arena.tasks.sound.examples import SoundExamples
from weft.errors import WeftError
from weft.layers.fronts.conv_features import ConvFeatures
from weft.objectives import Batch
from weft.sound.spectrum import mfcc, step_of, window_of

VERSION = 1
SAMPLE = 50_000  # frames that units are made from, at most
SOUNDS = 5_000  # sounds that they are taken from, at most


def with_units(rows: Any, task: Any, objective: Any, model: Any) -> UnitRows:
    """Rows, or a source, of a task of sound, whose batches hold the units of their frames."""
    if not isinstance(task, SoundTask) or task.form != "samples":
        raise WeftError(
            f"masked_units learns from sounds as samples: the task digits or sounds with "
            f"form='samples'; got {type(task).__name__}"
        )
    return UnitRows(rows, centres_of(task, objective.units), model.trunk.front, task.rate)


def centres_of(task: SoundTask, units: int) -> np.ndarray:
    """(units, 39) of the training sounds of a task."""
    train = task.load("train")
    settings = {
        "version": VERSION,
        "sounds": train.fingerprint,
        **{"units": units, "rate": task.rate, "length": task.length, "seed": task.seed},
    }

    def build(_: object) -> dict[str, np.ndarray]:
        return {"centres": found_centres(train, units, task.rate, task.seed)}

    return cached("sound_units", settings, build)["centres"]


def found_centres(train: SoundExamples, units: int, rate: int, seed: int) -> np.ndarray:
    """k-means of the frames of up to `SOUNDS` sounds."""
    chosen = np.linspace(0, len(train) - 1, min(len(train), SOUNDS)).astype(int)
    points = np.concatenate([mfcc(train[row][:, 0], rate) for row in chosen])
    stream = bits(seed)
    if len(points) > SAMPLE:
        points = points[below(stream, (SAMPLE,), len(points))]
    points, counts = np.unique(points, axis=0, return_counts=True)
    if len(points) < units:
        raise WeftError(
            f"the training sounds have {len(points):,} different frames, too few for {units} "
            "units: take fewer, or more sounds"
        )
    return kmeans(points, counts, units, stream)


def units_of(samples: np.ndarray, centres: np.ndarray, front: ConvFeatures, rate: int) -> Any:
    """The unit of each frame that the front makes of samples (n,): (frames,) int64."""
    own = nearest(mfcc(samples, rate), centres)  # (10 ms frames,)
    middle = np.arange(front.frames(len(samples))) * front.hop + (front.reach - 1) / 2
    place = np.rint((middle - (window_of(rate) - 1) / 2) / step_of(rate)).astype(int)
    return own[place.clip(0, len(own) - 1)].astype(np.int64)


class UnitRows:
    """A split, or a source, whose batches hold the units of their frames as `second`."""

    def __init__(self, rows: Any, centres: np.ndarray, front: ConvFeatures, rate: int) -> None:
        self.rows, self.centres, self.front, self.rate = rows, centres, front, rate

    def __getattr__(self, name: str) -> Any:
        if name == "rows":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.rows, name)  # lengths, names of groups, ...

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return f"{self.rows}, with {len(self.centres)} units"

    @property
    def fingerprint(self) -> str:
        """That of the rows, and how many units there are: both follow from them."""
        return f"{self.rows.fingerprint} units={len(self.centres)}"

    def batch(self, which: Any) -> Batch:
        """The rows of these numbers, or the batch of this step."""
        found = self.rows.batch(which)
        b, n = found.x.shape[:2]
        sizes = [n] * b if found.valid is None else found.valid.sum(1).tolist()
        units = np.zeros((b, self.front.frames(n)), dtype=np.int64)
        for row, size in enumerate(sizes):
            sound = found.x[row, :size, 0].numpy()
            own = units_of(sound, self.centres, self.front, self.rate)
            units[row, : len(own)] = own
        return replace(found, second=torch.from_numpy(units))

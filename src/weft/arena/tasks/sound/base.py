"""What tasks on sound have in common: one rate, one form of the samples, changes in training."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks.base import Split, majority
from weft.arena.tasks.sound.examples import Changing, Recordings, SoundExamples
from weft.config import write
from weft.errors import WeftError
from weft.sound.augment import Augment
from weft.sound.inputs import Form, SoundInput
from weft.sound.samples import CODES
from weft.spec import write as write_spec


@dataclass(frozen=True, kw_only=True)
class SoundTask:
    """Classify sounds."""

    rate: int = 8_000  # samples a second
    length: int = 8_192  # samples that are read of each sound, the first ones
    # Numbers of unit variance, for convolutions and (b, n, 1); or ids 0 to 255: μ-law, or 8 bits.
    form: Form = "samples"
    resample: bool = False  # convert files at another rate, which are refused otherwise
    mix: bool = False  # average the channels of stereo files, which are refused otherwise
    # Changes in training (weft.sound.augment), of the form "samples".
    speed: float = 0.0  # share by which a sound is faster or slower
    shift: float = 0.0  # seconds by which it begins later
    gain: float = 0.0  # decibels by which it is louder or softer
    noise: float = 0.0  # decibels that white noise is below it, at its loudest
    seed: int = 0  # of the splits that are made and of these changes

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise WeftError(f"length counts samples, at least 1; got length={self.length}")
        self.reading  # noqa: B018  # checks rate and form
        if self.augment.changes and self.form != "samples":
            raise WeftError(
                "speed, shift, gain and noise change numbers: take form='samples', or leave them "
                f"at 0; got form={self.form!r}"
            )

    @property
    def augment(self) -> Augment:
        """What is changed in training."""
        return Augment(speed=self.speed, shift=self.shift, gain=self.gain, noise=self.noise)

    @property
    def vocab(self) -> int:
        """Ids of the forms that are bytes."""
        return 0 if self.form == "samples" else CODES

    @property
    def inputs(self) -> dict[str, Any]:
        """The embedding's settings."""
        return {"channels": 1} if self.form == "samples" else {"vocab": CODES}

    @property
    def reading(self) -> SoundInput:
        """How a file becomes inputs."""
        return SoundInput(rate=self.rate, form=self.form, resample=self.resample, mix=self.mix)

    @property
    def tokens(self) -> str:
        """The same for the model's record, which `weft predict` reads."""
        return write_spec("sound", write(self.reading))

    @abstractmethod
    def recordings(self, split: Split) -> Recordings:
        """The sounds of a split and their classes."""

    def load(self, split: Split) -> Any:
        """One split, always the same for the same files and settings."""
        found = self.recordings(split)
        if self.form == "samples":
            return SoundExamples(found, self.length)
        codes = self.reading.coded(found.samples)
        return Examples(TokenRows(codes, found.starts), self.length, labels=found.labels)

    def stream(self, batch_size: int) -> Changing | None:
        """Training sounds that are changed anew whenever they are read, if any change is asked."""
        if not self.augment.changes:
            return None
        rows = SoundExamples(self.recordings("train"), self.length)
        return Changing(rows, batch_size, self.augment, self.rate, self.seed)

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        train, test = self.load("train"), self.load("test")
        return {"majority class": majority(train, test)}

    def show(self, row: np.ndarray) -> str:
        """The loudness of a sound over time."""
        values = np.asarray(row, dtype=np.float64).reshape(-1)
        if self.form != "samples":
            values = values - CODES / 2
        parts = np.array_split(np.abs(values), 64)
        loud = np.array([part.max() if len(part) else 0.0 for part in parts])
        bars = "▁▂▃▄▅▆▇█"
        return "".join(bars[int(7 * x / max(loud.max(), 1e-9))] for x in loud)

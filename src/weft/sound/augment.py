"""Sounds as they might also have been: faster or slower, later, louder, in noise.

speed    the sound is played by a factor in [1 − s, 1 + s] faster, its pitch moves with it
shift    up to this many seconds of the noise stand before it
gain     up to this many decibels louder or softer
noise    white noise, this many decibels below the sound or up to 30 more
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.config import config
from weft.errors import WeftError

QUIETER = 30.0  # decibels from the loudest noise to the softest


@config
class Augment:
    """How much sounds are changed in training; 0: not at all."""

    speed: float = 0.0  # share
    shift: float = 0.0  # seconds
    gain: float = 0.0  # decibels
    noise: float = 0.0  # decibels that the loudest noise is below the sound

    def __post_init__(self) -> None:
        if min(self.speed, self.shift, self.gain, self.noise) < 0 or self.speed >= 1:
            raise WeftError(f"speed is a share in [0, 1), the others 0 or more; got {self}")

    @property
    def changes(self) -> bool:
        """Whether anything is done at all."""
        return any((self.speed, self.shift, self.gain, self.noise))

    def apply(self, samples: np.ndarray, rate: int, rng: Any) -> np.ndarray:
        """Samples (n,) of unit variance -> (m,) float32."""
        if self.speed:
            factor = 1.0 + self.speed * rng.uniform(-1.0, 1.0)
            count = max(2, round(len(samples) / factor))
            samples = np.interp(
                np.linspace(0, len(samples) - 1, count), np.arange(len(samples)), samples
            )
        if self.shift:
            samples = np.pad(samples, (int(rng.uniform(0.0, self.shift) * rate), 0))
        if self.noise:
            below = self.noise + QUIETER * rng.random()
            noise = rng.standard_normal(len(samples), dtype=np.float32)
            samples = samples + 10.0 ** (-below / 20.0) * noise
        if self.gain:
            samples = samples * 10.0 ** (self.gain * rng.uniform(-1.0, 1.0) / 20.0)
        return samples.astype(np.float32)

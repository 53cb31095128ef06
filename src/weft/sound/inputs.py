"""How a sound file becomes what a model reads; tasks train with it, `weft predict` repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from weft.config import config
from weft.errors import WeftError
from weft.sound.files import read_sound, to_int16
from weft.sound.samples import linear_bytes, mu_law, standardised

Form = Literal["samples", "mu_law", "bytes"]


@config
class SoundInput:
    """The rate and form of samples, and what is done with files that have others."""

    rate: int = 8_000  # samples a second
    # Numbers of unit variance, for convolutions and (b, n, 1); or ids 0 to 255: μ-law, or 8 bits.
    form: Form = "samples"
    resample: bool = False  # convert files at another rate, which are refused otherwise
    mix: bool = False  # average the channels of stereo files, which are refused otherwise

    def __post_init__(self) -> None:
        if self.rate < 1:
            raise WeftError(f"rate is samples a second, at least 1; got rate={self.rate}")
        if self.form not in ("samples", "mu_law", "bytes"):
            raise WeftError(f"form is 'samples', 'mu_law' or 'bytes'; got {self.form!r}")

    def read(self, path: Path) -> np.ndarray:
        """The samples of a file as 16 bits, (n,)."""
        return to_int16(read_sound(path, self.rate, resample=self.resample, mix=self.mix))

    def coded(self, samples: np.ndarray) -> np.ndarray:
        """Samples of 16 bits (n,) in this form: (n, 1) float32, or (n,) uint8."""
        if self.form == "samples":
            return standardised(samples)[:, None]
        return (mu_law if self.form == "mu_law" else linear_bytes)(samples / 32768.0)

"""The scales of the ten numbers, fitted once: the same for all seeds and splits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from weft.arena.tasks.transactions.clients import NUMBERS, Generator
from weft.events.encoders import NumberScale, Sample

FITTED_ON = 500  # training clients of seed 0


@lru_cache(maxsize=1)
def scaled() -> tuple[NumberScale, ...]:
    """The scales of the numbers, from training clients of seed 0: the same for all."""
    found = Generator().clients(np.arange(FITTED_ON), np.zeros(FITTED_ON))
    real = np.arange(found.codes.shape[1]) < found.lengths[:, None]
    samples = [Sample() for _ in NUMBERS]
    for k, each in enumerate(samples):
        rng = np.random.Generator(np.random.PCG64(k))
        each.add(found.numbers[..., k][real].astype(np.float64), rng.random(int(real.sum())))
    return tuple(each.numbers("quantile") for each in samples)

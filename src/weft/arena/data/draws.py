"""Random numbers for generated data: the same with every version of numpy and on every platform.

The stream of a bit generator is fixed by numpy's promise, that of its distributions is not; so data
are made from the bits themselves.
"""

from __future__ import annotations

import numpy as np

from weft.errors import WeftError


def bits(seed: int, *numbers: int) -> np.random.PCG64:
    """A stream of its own for each seed and numbers, e.g. of a split or a chunk."""
    if seed < 0:
        raise WeftError(f"a seed is 0 or more; got {seed}")
    return np.random.PCG64(np.random.SeedSequence([seed, *numbers]))


def below(stream: np.random.PCG64, shape: tuple[int, ...], limit: int) -> np.ndarray:
    """Whole numbers 0 to limit − 1, equally likely up to limit / 2³²."""
    return scaled(stream.random_raw(int(np.prod(shape))), limit).reshape(shape)


def scaled(raw: np.ndarray, limit: int) -> np.ndarray:
    """Whole numbers 0 to limit − 1 from the lower halves of 64-bit words."""
    low = raw & np.uint64(0xFFFFFFFF)
    return (low * np.uint64(limit) >> np.uint64(32)).astype(np.int64)

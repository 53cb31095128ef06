"""Which of a few points is nearest: the colour of a palette, the unit of a sound."""

from __future__ import annotations

import numpy as np

_AT_ONCE = 1 << 16  # points compared with the centres at one time


def nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The number of the centre (k, d) that is nearest to each point (..., d); of two, the first."""
    flat = points.reshape(-1, points.shape[-1])
    centres = centres.astype(np.float64)
    found = np.empty(len(flat), dtype=np.uint16 if len(centres) <= 1 << 16 else np.uint32)
    for begin in range(0, len(flat), _AT_ONCE):
        some = flat[begin : begin + _AT_ONCE].astype(np.float64)
        # |p|² is the same for all centres and stays out.
        found[begin : begin + _AT_ONCE] = (
            (centres**2).sum(1) - 2 * some @ centres.T  # (points, k)
        ).argmin(1)
    return found.reshape(points.shape[:-1])

"""k-means: a few points that represent all others; palettes and units of sound are made by it.

    centres    argmin over k points of Σ_p w_p min_c |p − c|²   (a local minimum, by Lloyd)

The first centres are distinct points, drawn with probability proportional to weight times the
squared distance to those drawn before (k-means++, Arthur and Vassilvitskii 2007,
https://dl.acm.org/doi/10.5555/1283383.1283494). All is a function of the points and the seed.
"""

from __future__ import annotations

import numpy as np

from weft.pictures.nearest import nearest

ROUNDS = 30  # of Lloyd's algorithm, at most


def kmeans(points: np.ndarray, counts: np.ndarray, k: int, stream: np.random.PCG64) -> np.ndarray:
    """Centres (k, d) float64 of distinct points (n, d), n ≥ k, that count so often (n,)."""
    centres = _first(points, counts, k, stream)
    for _ in range(ROUNDS):
        moved = _means(points, counts, nearest(points, centres), centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _first(points: np.ndarray, counts: np.ndarray, k: int, stream: np.random.PCG64) -> np.ndarray:
    """Centres to begin with: (k, d), all different."""
    chosen = [int(counts.argmax())]
    distance = ((points - points[chosen[0]]) ** 2).sum(1)
    for raw in stream.random_raw(k - 1):
        heights = np.cumsum(distance * counts)
        at = float(raw) / 2.0**64 * heights[-1]
        place = min(int(np.searchsorted(heights, at, side="right")), len(points) - 1)
        if distance[place] == 0:  # rounding at an edge
            place = int(distance.argmax())
        chosen.append(place)
        distance = np.minimum(distance, ((points - points[place]) ** 2).sum(1))
    return points[chosen]


def _means(
    points: np.ndarray, counts: np.ndarray, own: np.ndarray, centres: np.ndarray
) -> np.ndarray:
    """The mean of each centre's points; a centre without any stays where it is."""
    weight = np.bincount(own, counts, minlength=len(centres))  # (k,)
    sums = [
        np.bincount(own, counts * points[:, i], minlength=len(centres))
        for i in range(points.shape[1])
    ]
    means = np.stack(sums, axis=1) / np.maximum(weight, 1)[:, None]
    return np.where(weight[:, None] > 0, means, centres)

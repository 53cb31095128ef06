"""Palettes: a few colours that represent all others, found by k-means.

    palette    argmin over k colours of Σ_pixels min_c |pixel − c|²   (a local minimum, by Lloyd)
    picture    for each pixel the number of the nearest colour

The first centres are distinct pixels, drawn with probability proportional to the squared distance
to those drawn before (k-means++). Colours are numbered from dark to bright. All is a function of
the pixels and the seed. iGPT's palette has 512 colours: 9 bits instead of 24
(Chen et al. 2020, section 3.1, https://openai.com/index/image-gpt/).
"""

from __future__ import annotations

import numpy as np

from weft.arena.data.draws import below, bits
from weft.errors import WeftError

SAMPLE = 50_000  # pixels that a palette is made from, at most
ROUNDS = 30  # of Lloyd's algorithm, at most
_AT_ONCE = 1 << 16  # pixels compared with the palette at one time


def palette(pixels: np.ndarray, colours: int, seed: int = 0) -> np.ndarray:
    """(colours, 3) float32 from pixels (n, 3) uint8."""
    if pixels.ndim != 2 or pixels.shape[1] != 3 or pixels.dtype != np.uint8:
        raise WeftError(f"pixels are uint8 (n, 3); got {pixels.dtype} {pixels.shape}")
    stream = bits(seed)
    if len(pixels) > SAMPLE:
        pixels = pixels[below(stream, (SAMPLE,), len(pixels))]
    distinct, counts = np.unique(pixels, axis=0, return_counts=True)
    if not 1 <= colours <= len(distinct):
        raise WeftError(
            f"a palette has 1 colour to as many as the pixels have, {len(distinct):,}; "
            f"got colours={colours}"
        )
    points = distinct.astype(np.float64)
    centres = _first(points, counts, colours, stream)
    for _ in range(ROUNDS):
        own = nearest(points, centres)
        moved = _means(points, counts, own, centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    brightness = centres @ np.array([0.2989, 0.587, 0.114])
    return centres[np.argsort(brightness, kind="stable")].astype(np.float32)


def nearest(pixels: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """The number of the colour (k, 3) that is nearest to each pixel (..., 3); of two, the first."""
    flat = pixels.reshape(-1, 3)
    centres = colours.astype(np.float64)
    found = np.empty(len(flat), dtype=np.uint16 if len(colours) <= 1 << 16 else np.uint32)
    for begin in range(0, len(flat), _AT_ONCE):
        some = flat[begin : begin + _AT_ONCE].astype(np.float64)
        # |p|² is the same for all colours and stays out.
        found[begin : begin + _AT_ONCE] = (
            (centres**2).sum(1) - 2 * some @ centres.T  # (pixels, k)
        ).argmin(1)
    return found.reshape(pixels.shape[:-1])


def _first(
    points: np.ndarray, counts: np.ndarray, colours: int, stream: np.random.PCG64
) -> np.ndarray:
    """Centres to begin with: (colours, 3), all different."""
    chosen = [int(counts.argmax())]
    distance = ((points - points[chosen[0]]) ** 2).sum(1)
    for raw in stream.random_raw(colours - 1):
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
    """The mean of each centre's pixels; a centre without any stays where it is."""
    weight = np.bincount(own, counts, minlength=len(centres))  # (k,)
    sums = [np.bincount(own, counts * points[:, i], minlength=len(centres)) for i in range(3)]
    means = np.stack(sums, axis=1) / np.maximum(weight, 1)[:, None]
    return np.where(weight[:, None] > 0, means, centres)

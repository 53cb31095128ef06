"""Palettes: a few colours that represent all others, found by k-means (`arena.data.kmeans`).

    palette    argmin over k colours of Σ_pixels min_c |pixel − c|²
    picture    for each pixel the number of the nearest colour

Colours are numbered from dark to bright. All is a function of the pixels and the seed. iGPT's
palette has 512 colours: 9 bits instead of 24
(Chen et al. 2020, section 3.1, https://openai.com/index/image-gpt/).
"""

from __future__ import annotations

import numpy as np

from weft.arena.data.draws import below, bits
from weft.arena.data.kmeans import kmeans, nearest
from weft.errors import WeftError

__all__ = ["nearest", "palette"]

SAMPLE = 50_000  # pixels that a palette is made from, at most


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
    centres = kmeans(distinct.astype(np.float64), counts, colours, stream)
    brightness = centres @ np.array([0.2989, 0.587, 0.114])
    return centres[np.argsort(brightness, kind="stable")].astype(np.float32)

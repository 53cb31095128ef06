"""Samples in other forms: at another rate, as bytes, with unit variance.

    μ-law   code = ⌊(F(x) + 1) μ / 2 + 1/2⌋,   F(x) = sign(x) ln(1 + μ |x|) / ln(1 + μ),   μ = 255
    linear  code = ⌊128 x⌋ + 128

μ-law spends its 256 codes on quiet samples (ITU-T G.711; van den Oord et al. 2016, WaveNet, section
2.2, https://arxiv.org/abs/1609.03499).
"""

from __future__ import annotations

from math import gcd

import numpy as np

MU = 255.0
CODES = 256
ZEROS = 32  # zero crossings of the sinc on each side
_PIECE = 1 << 15  # outputs that are computed together


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Samples (n,) at another rate: a sinc under a Hann window, cut off below both limits."""
    divisor = gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor
    if up == down:
        return samples
    cutoff = min(1.0, up / down)
    reach = int(np.ceil(ZEROS / cutoff))
    count = -(-len(samples) * up // down)
    padded = np.pad(samples, reach)
    offsets = np.arange(-reach + 1, reach + 1)
    parts = []
    for start in range(0, count, _PIECE):
        place = np.arange(start, min(start + _PIECE, count)) * down
        base, rest = place // up, (place % up) / up
        apart = offsets - rest[:, None]  # (outputs, taps)
        window = np.cos(np.pi * apart / (2 * reach)) ** 2
        taps = cutoff * np.sinc(cutoff * apart) * window * (np.abs(apart) < reach)
        parts.append((padded[base[:, None] + offsets + reach] * taps).sum(1))
    return np.concatenate(parts)


def mu_law(samples: np.ndarray) -> np.ndarray:
    """Samples in [−1, 1] -> codes 0 to 255, uint8."""
    x = samples.clip(-1.0, 1.0).astype(np.float64)
    squeezed = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
    return np.floor((squeezed + 1.0) * MU / 2.0 + 0.5).astype(np.uint8)


def from_mu_law(codes: np.ndarray) -> np.ndarray:
    """Codes 0 to 255 -> the samples in the middle of what they stand for, float32."""
    y = 2.0 * codes.astype(np.float64) / MU - 1.0
    return (np.sign(y) * np.expm1(np.abs(y) * np.log1p(MU)) / MU).astype(np.float32)


def linear_bytes(samples: np.ndarray) -> np.ndarray:
    """Samples in [−1, 1] -> codes 0 to 255, uint8, evenly spaced: the wav files of 8 bits."""
    return (np.floor(samples * 128.0) + 128.0).clip(0, 255).astype(np.uint8)


def standardised(samples: np.ndarray) -> np.ndarray:
    """Samples (n,) less their mean, over their standard deviation: float32."""
    x = samples.astype(np.float32)
    return (x - x.mean()) / np.float32(x.std() + 1e-7)

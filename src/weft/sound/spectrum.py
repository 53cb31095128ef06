"""Spectra of sounds: log-mel bands, and the cepstral coefficients that units are made from.

    power     |FFT(hann · s_j)|²,   s_j: 25 ms of samples from each 10 ms on, pre-emphasised
    log-mel   log(filters · power + ε): triangles, evenly spaced in mel = 2595 log₁₀(1 + f / 700)
    mfcc      the first 13 of the orthonormal DCT-II of the log-mel bands; with their first and
              second differences over time, 39

A sound shorter than 25 ms is padded with zeros to one frame.

Paper: Davis and Mermelstein 1980, https://doi.org/10.1109/TASSP.1980.1163420; 39 coefficients as
HuBERT takes them (Hsu et al. 2021, section III-A, https://arxiv.org/abs/2106.07447)
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

WINDOW, STEP = 0.025, 0.010  # seconds
BANDS, COEFFICIENTS = 40, 13
EMPHASIS = 0.97
REACH = 2  # frames on each side that a difference is taken over
_FLOOR = 1e-6


def window_of(rate: int) -> int:
    """Samples of a frame."""
    return max(2, round(WINDOW * rate))


def step_of(rate: int) -> int:
    """Samples from one frame to the next."""
    return max(1, round(STEP * rate))


def log_mel(samples: np.ndarray, rate: int, bands: int = BANDS) -> np.ndarray:
    """Samples (n,) -> (frames, bands), natural logarithms."""
    window, step = window_of(rate), step_of(rate)
    x = samples.astype(np.float64)
    x = np.pad(x, (0, max(0, window - len(x))))
    x = np.append(x[:1], x[1:] - EMPHASIS * x[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(x, window)[::step]
    size = 1 << (window - 1).bit_length()
    power = np.abs(np.fft.rfft(frames * _hann(window), size)) ** 2  # (frames, size / 2 + 1)
    return np.log(power @ mel_filters(rate, size, bands).T + _FLOOR)


def mfcc(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples (n,) -> (frames, 39): coefficients, their differences, and those of these."""
    static = log_mel(samples, rate) @ _cosines(BANDS).T  # (frames, 13)
    first = differences(static)
    return np.concatenate((static, first, differences(first)), axis=1)


def differences(x: np.ndarray) -> np.ndarray:
    """The slope of a line through each frame and two on each side, (frames, d); edges repeat."""
    padded = np.pad(x, ((REACH, REACH), (0, 0)), mode="edge")
    n = len(x)
    total = sum(
        d * (padded[REACH + d : REACH + d + n] - padded[REACH - d : REACH - d + n])
        for d in range(1, REACH + 1)
    )
    return np.asarray(total) / (2 * sum(d * d for d in range(1, REACH + 1)))


@lru_cache(maxsize=8)
def mel_filters(rate: int, size: int, bands: int) -> np.ndarray:
    """(bands, size / 2 + 1) triangles from 0 to half the rate."""
    top = 2595.0 * np.log10(1.0 + rate / 2 / 700.0)
    edges = 700.0 * (10.0 ** (np.linspace(0.0, top, bands + 2) / 2595.0) - 1.0)
    at = np.arange(size // 2 + 1) * rate / size
    rising = (at - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - at) / (edges[2:] - edges[1:-1])[:, None]
    return np.minimum(rising, falling).clip(min=0.0)


@lru_cache(maxsize=8)
def _hann(window: int) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)


@lru_cache(maxsize=2)
def _cosines(bands: int) -> np.ndarray:
    """(13, bands): the orthonormal DCT-II."""
    k, n = np.arange(COEFFICIENTS)[:, None], np.arange(bands)
    found = np.cos(np.pi * k * (2 * n + 1) / (2 * bands)) * np.sqrt(2.0 / bands)
    found[0] /= np.sqrt(2.0)
    return found

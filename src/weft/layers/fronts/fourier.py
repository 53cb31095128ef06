"""Fourier features: places on a grid as sines and cosines of several frequencies.

    φ(p) = [p; sin(π f_k,d p_d); cos(π f_k,d p_d)],   p_d from −1 to 1 along axis d of r_d places
    f_k,d = 1 + (k − 1)(r_d / 2 − 1) / (K − 1),       k = 1 … K: evenly up to Nyquist's frequency

Paper: Jaegle et al. 2021, Perceiver, section 3.2, https://arxiv.org/abs/2103.03206
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def fourier_width(axes: int, bands: int) -> int:
    """Features of a place on a grid of this many axes."""
    return axes * (1 + 2 * bands)


def fourier_features(grid: tuple[int, ...], bands: int) -> Tensor:
    """Places of a grid in raster order -> (places, axes · (1 + 2 bands)), float32."""
    lines = [torch.linspace(-1.0, 1.0, size) for size in grid]
    places = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1)
    places = places.reshape(-1, len(grid))  # (n, axes)
    frequencies = torch.stack([torch.linspace(1.0, size / 2, bands) for size in grid])
    angles = (math.pi * places[..., None] * frequencies).flatten(1)  # (n, axes · bands)
    return torch.cat((places, angles.sin(), angles.cos()), dim=1)

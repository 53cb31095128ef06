"""Landmarks: means of equal segments of the real tokens, and the inverse that joins them.

A row of L real tokens has r' = min(r, L) landmarks; token j belongs to segment ⌊j·r' / L⌋, so
segments differ by one token at most and padding moves none of them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def segments(length: Tensor, n: int, count: int) -> tuple[Tensor, Tensor]:
    """Real lengths (b,) -> the tokens of each segment (b, r, n), and which segments exist (b, r).

    `count` is r; every length is at least 1 and at most n.
    """
    index = torch.arange(n, device=length.device)
    used = length.clamp(max=count)[:, None]  # (b, 1)
    segment = index * used // length[:, None]  # (b, n)
    place = torch.arange(count, device=length.device)[:, None]  # (r, 1)
    inside = (segment[:, None] == place) & (index < length[:, None, None])  # (b, r, n)
    return inside, used > place.T


def segment_means(x: Tensor, inside: Tensor) -> Tensor:
    """Tokens (b, h, n, d), segments (b, r, n) -> (b, h, r, d); an empty segment gives 0."""
    # Ones and zeros are exact in any precision; a sum over tokens may leave the range of float16.
    work = torch.float32 if x.dtype == torch.float16 else x.dtype
    count = inside.sum(-1).clamp(min=1)[:, None, :, None]  # (b, 1, r, 1)
    return ((inside.to(work)[:, None] @ x.to(work)) / count).to(x.dtype)


def iterative_inverse(a: Tensor, iterations: int) -> Tensor:
    """The Moore-Penrose inverse of matrices (..., r, r), approached from Aᵀ / (‖A‖₁ ‖A‖_∞).

    Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))): cubic once near (Razavi et al. 2014).
    """
    columns, rows = a.abs().sum(-2).amax(-1), a.abs().sum(-1).amax(-1)
    z = a.transpose(-1, -2) / (columns * rows)[..., None, None]
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z

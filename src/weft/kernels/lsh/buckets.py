"""Where tokens belong, by Triton kernels: hash buckets, nearest centroids, online k-means.

Each is what a few products and an argmax give, without the products ever being written. The plain
forms are in the mixers that use them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.kernels.launch import on_grid, unit_stride
from weft.kernels.lsh.triton import Runs, padded_width

MOST_COLUMNS = 128  # of a rotation that is held at once
TOKENS, CENTROIDS, MEMBERS = 64, 64, 64  # of one program; centroids and members of one step


def hash_tokens(x: Tensor, rotations: Tensor, factors: list[int]) -> Tensor:
    """x (b, h, n, d), rotations (h, r, d, columns) -> buckets (b, h, r, n) of one or two hashes."""
    from weft.kernels.lsh.bucket_kernels import hash_kernel

    x, rotations = unit_stride(x), rotations.contiguous()
    b, h, n, d = x.shape
    rounds = rotations.shape[1]
    buckets = torch.empty(b, h, rounds, n, device=x.device, dtype=torch.int64)
    low, high = (*factors, 0)[:2]
    sizes = (h, rounds, n, low, high, max(1, low // 2), high // 2)
    on_grid(hash_kernel, (b * h * -(-n // TOKENS),))(
        x, rotations, buckets, *x.stride()[:3], *sizes,
        M=TOKENS, HEAD=d, WIDTH=padded_width(d), COLUMNS=_wide_enough(rotations.shape[-1]),
    )  # fmt: skip
    return buckets


def nearest_centroids(x: Tensor, centroids: Tensor) -> Tensor:
    """x (b, h, n, d), centroids (h, s, d) -> the nearest of them (b, h, n)."""
    return _nearest(x, centroids, None)


def centroid_cosines(x: Tensor, centroids: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and all cosines (b, h, s, n), −inf for tokens from `length` (b,) on."""
    near = torch.empty(*x.shape[:2], centroids.shape[1], x.shape[2], device=x.device)
    return _nearest(x, centroids, near, length), near


def _nearest(
    x: Tensor, centroids: Tensor, near: Tensor | None, length: Tensor | None = None
) -> Tensor:
    from weft.kernels.lsh.bucket_kernels import nearest_kernel

    x, centroids = unit_stride(x), centroids.contiguous()
    (b, h, n, d), s = x.shape, centroids.shape[1]
    nearest = torch.empty(b, h, n, device=x.device, dtype=torch.int64)
    given = (nearest if y is None else y for y in (near, length))
    on_grid(nearest_kernel, (b * h * -(-n // TOKENS),))(
        x, centroids, nearest, *given, *x.stride()[:3], h, n, s,
        M=TOKENS, HEAD=d, WIDTH=padded_width(d), COLUMNS=min(CENTROIDS, _wide_enough(s)),
        WRITES=near is not None,
    )  # fmt: skip
    return nearest


def move_centroids(
    x: Tensor, centroids: Tensor, clusters: Runs, length: Tensor, decay: float
) -> None:
    """One step of online k-means in place: centroids (h, s, d), tokens x (b, h, n, d).

    `clusters` are the runs of the nearest centroids; tokens from `length` (b,) on move nothing.
    """
    from weft.kernels.lsh.bucket_kernels import move_kernel

    x = unit_stride(x)
    (b, h, n, d), s = x.shape, centroids.shape[1]
    on_grid(move_kernel, (h * s,))(
        x, centroids, clusters.token, clusters.start, length, *x.stride()[:3], h, b, n, s, decay,
        M=MEMBERS, HEAD=d, WIDTH=padded_width(d),
    )  # fmt: skip


def _wide_enough(columns: int) -> int:
    """A power of two that a product takes."""
    return max(16, 1 << (columns - 1).bit_length())

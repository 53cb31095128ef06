# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels that say where tokens belong: hash buckets, nearest centroids, moved centroids.

Products are those of float32: the matrices are split into two parts of the rows' own precision, and
what both give is added in float32. A token's number depends on its own row alone, so decoding finds
the numbers that training found.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.lsh.row_kernels import row_address, row_mask


@triton.jit
def _products(x, matrix):
    """Rows of x in half precision times a float32 matrix, as exact as float32."""
    matrix = matrix.to(tl.float32)
    high = matrix.to(x.dtype)
    low = (matrix - high.to(tl.float32)).to(x.dtype)
    return tl.dot(x, low, tl.dot(x, high))


@triton.jit
def _side(turned, column, first, count, factor):
    """argmax([t, −t]) over `count` columns from `first` on."""
    inside = (column >= first) & (column < first + count)
    best = tl.argmax(tl.where(inside[None, :], tl.abs(turned), -1.0), 1)
    value = tl.sum(tl.where(column[None, :] == best[:, None], turned, 0.0), 1)
    return best - first + tl.where(value < 0, factor // 2, 0)


@triton.jit
def hash_kernel(
    x_ptr, rotation_ptr, bucket_ptr, x_b, x_h, x_n, heads, rounds, n,
    low, high, low_columns, high_columns,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Bucket numbers of a block of tokens in every round; low · high buckets from two hashes."""
    blocks = tl.cdiv(n, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    real = at < n
    b, h = line // heads, line % heads
    here = row_address(x_ptr, b, h, x_b, x_h, x_n, at, WIDTH)
    x = tl.load(here, mask=row_mask(real, HEAD, WIDTH), other=0)
    d, column = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    columns = low_columns + high_columns
    for r in range(0, rounds):
        place = ((h * rounds + r) * HEAD + d[:, None]) * columns + column[None, :]
        held = (column < columns)[None, :] & (d[:, None] < HEAD)
        turned = _products(x, tl.load(rotation_ptr + place, mask=held, other=0))
        bucket = _side(turned, column, 0, low_columns, low)
        if high_columns > 0:
            bucket += _side(turned, column, low_columns, high_columns, high) * low
        tl.store(bucket_ptr + (line * rounds + r) * n + at, bucket.to(tl.int64), mask=real)


@triton.jit
def nearest_kernel(
    x_ptr, centroid_ptr, nearest_ptr, near_ptr, length_ptr, x_b, x_h, x_n, heads, n, clusters,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    WRITES: tl.constexpr,
):  # fmt: skip
    """The nearest centroid of a block of tokens; `WRITES`: also all cosines, by cluster."""
    blocks = tl.cdiv(n, M)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * M + tl.arange(0, M)
    real = at < n
    b, h = line // heads, line % heads
    here = row_address(x_ptr, b, h, x_b, x_h, x_n, at, WIDTH)
    x = tl.load(here, mask=row_mask(real, HEAD, WIDTH), other=0)
    d, column = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    best = tl.full([M], float("-inf"), tl.float32)
    nearest = tl.zeros([M], tl.int32)
    wide = x.to(tl.float32)
    norm = 1.0 / tl.sqrt(tl.maximum(tl.sum(wide * wide, 1), 1e-24))
    counts = real
    if WRITES:
        counts = at < tl.load(length_ptr + b).to(tl.int32)
    for start in range(0, clusters, COLUMNS):
        cluster = start + column
        held = cluster < clusters
        place = (h * clusters + cluster)[None, :] * HEAD + d[:, None]
        given = held[None, :] & (d[:, None] < HEAD)
        near = _products(x, tl.load(centroid_ptr + place, mask=given, other=0))
        if WRITES:
            cosine = tl.where(counts[:, None], near * norm[:, None], float("-inf"))
            to = near_ptr + (line * clusters + cluster)[None, :] * n + at[:, None]
            tl.store(to, cosine, mask=held[None, :] & real[:, None])
        near = tl.where(held[None, :], near, float("-inf"))
        top = tl.max(near, 1)
        nearest = tl.where(top > best, start + tl.argmax(near, 1), nearest)
        best = tl.maximum(best, top)
    tl.store(nearest_ptr + line * n + at, nearest.to(tl.int64), mask=real)


@triton.jit
def move_kernel(
    x_ptr, centroid_ptr, token_ptr, start_ptr, length_ptr, x_b, x_h, x_n,
    heads, batch, n, clusters, decay,
    M: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One centroid, in place: towards the mean direction of the real tokens nearest to it."""
    h, cluster = tl.program_id(0) // clusters, tl.program_id(0) % clusters
    d = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    x_ptr += h.to(tl.int64) * x_h
    for b in range(0, batch):
        line = b * heads + h
        length = tl.load(length_ptr + b).to(tl.int32)
        first = tl.load(start_ptr + line * clusters + cluster)
        last = tl.load(start_ptr + line * clusters + cluster + 1)
        for begin in range(first, last, M):
            at = begin + tl.arange(0, M)
            token = tl.load(token_ptr + at, mask=at < last, other=n)
            here = row_address(x_ptr, 0, 0, x_b, x_h, x_n, token, WIDTH)
            x = tl.load(here, mask=row_mask(token < length, HEAD, WIDTH), other=0).to(tl.float32)
            square = tl.maximum(tl.sum(x * x, 1), 1e-24)
            total += tl.sum(x / tl.sqrt(square)[:, None], 0)
        x_ptr += x_b
    place = centroid_ptr + (h * clusters + cluster) * HEAD + d
    old = tl.load(place, mask=d < HEAD, other=0).to(tl.float32)
    size = tl.sqrt(tl.maximum(tl.sum(total * total, 0), 1e-24))
    moved = decay * old + (1 - decay) * total / size
    moved = moved / tl.sqrt(tl.maximum(tl.sum(moved * moved, 0), 1e-24))
    met = tl.max(tl.abs(total), 0) > 0
    moved = tl.where(met, moved, old).to(centroid_ptr.dtype.element_ty)
    tl.store(place, moved, mask=d < HEAD)

"""Triton functions of dropout: numbers of rows and columns, and which weights they keep.

Everything is modulo 2³². A line has a seed for its rows and one for its columns, hashed once more
with the place of a row or column.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mixed(x):
    """A hash of 32 bits: lowbias32, by Chris Wellons."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _line_seed(seeds, line):
    return _mixed((tl.load(seeds) + line * 668265261).to(tl.uint32, bitcast=False))


@triton.jit
def row_numbers(seeds, line, rows):
    """What rows of a line draw, odd."""
    return _mixed(rows.to(tl.uint32, bitcast=False) ^ _line_seed(seeds, line)) | 1


@triton.jit
def column_numbers(seeds, line, cols):
    """What columns of a line draw."""
    seed = _mixed(_line_seed(seeds, line) + 0x9E3779B9)
    return _mixed(cols.to(tl.uint32, bitcast=False) ^ seed)


@triton.jit
def kept_factors(row, col, threshold, grow):
    """What dropout multiplies weights by, from what rows and columns drew: 0, or `grow` where kept.

    The product against a threshold: one operation for each weight, where a generator of the Philox
    family takes twenty. A factor that is used once costs least: the compiler packs conditions that
    have to last into bits, and takes them apart again.
    """
    return tl.where(row * col >= threshold.to(tl.uint32, bitcast=False), grow, 0.0)


@triton.jit
def draws(ptr, at, count):
    """Numbers of rows or columns `at` from a table; 0 beyond its end."""
    return tl.load(ptr + at, mask=at < count, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def draw_kernel(seeds, row_ptr, col_ptr, n, m, BLOCK: tl.constexpr):
    """Tables of what the rows (lines, n) and columns (lines, m) draw."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = row_numbers(seeds, line, at).to(tl.int32, bitcast=True)
    cols = column_numbers(seeds, line, at).to(tl.int32, bitcast=True)
    tl.store(row_ptr + line * n + at, rows, mask=at < n)
    tl.store(col_ptr + line * m + at, cols, mask=at < m)

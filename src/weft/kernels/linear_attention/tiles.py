# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Pieces of the Triton kernels of linear attention: blocks of rows, tiles of features, sums.

Features come in tiles of T, so any number will do, and are made where they are needed:

    given φ = x    elu φ = elu(x) + 1    exp φ = exp(s·ω·x − shift)    relu φ = max(0, s·ω·x) + c
    trig φ = c [sin(s·ω·y), cos(s·ω·y)],    y = σ ∘ x / ‖x‖

F is the number of features, P that rounded up to whole tiles, D the width of x where there is an ω
and 0 where there is none, E the width of values, W the tokens of a chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_addresses(ptr, line, heads, s_b, s_h, s_n, rows):
    """Addresses (W, 1) of rows of one line."""
    b, h = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    return ptr + b * s_b + h * s_h + rows[:, None].to(tl.int64) * s_n


@triton.jit
def block_of(ptr, line, heads, s_b, s_h, s_n, rows, n, WIDTH: tl.constexpr):
    """Rows (W, WIDTH), 0 beyond the end; 0 where WIDTH is."""
    found = 0.0
    if WIDTH > 0:
        at = row_addresses(ptr, line, heads, s_b, s_h, s_n, rows) + tl.arange(0, WIDTH)[None, :]
        found = tl.load(at, mask=(rows < n)[:, None], other=0.0)
    return found


@triton.jit
def _unit(x):
    """Rows of length 1, and what they were multiplied by, in float32."""
    x = x.to(tl.float32)
    inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), 1e-12)
    return x * inverse[:, None], inverse


@triton.jit
def _scales(unit_ptr, line, heads, D: tl.constexpr):
    """σ of this head, (1, D)."""
    return tl.load(unit_ptr + (line % heads) * D + tl.arange(0, D))[None, :]


@triton.jit
def input_of(x, unit_ptr, line, heads, D: tl.constexpr, KIND: tl.constexpr):
    """What ω meets, (W, D): x, or for trig x / ‖x‖ times σ."""
    if KIND == "trig":
        unit, _ = _unit(x)
        x = (unit * _scales(unit_ptr, line, heads, D)).to(x.dtype)
    return x


@triton.jit
def input_gradient(grad, x, unit_ptr, line, heads, D: tl.constexpr):
    """Gradients of x (W, D) and of σ (D) from that of x / ‖x‖ times σ."""
    unit, inverse = _unit(x)
    of_scale = tl.sum(grad * unit, 0)
    grad = grad * _scales(unit_ptr, line, heads, D)
    return (grad - unit * tl.sum(grad * unit, 1)[:, None]) * inverse[:, None], of_scale


@triton.jit
def directions_of(w_ptr, line, heads, f, P: tl.constexpr, D: tl.constexpr):
    """ω of one tile, (T, D); 0 where D is."""
    found = 0.0
    if D > 0:
        at = (line % heads) * P + f
        found = tl.load(w_ptr + at[:, None] * D + tl.arange(0, D)[None, :])
    return found


@triton.jit
def raw_tile(x, at, w, rows, n, f, scale, F: tl.constexpr, D: tl.constexpr):
    """What φ is taken of, (W, T) in float32: s·ω·x, or without ω the numbers at these addresses."""
    if D > 0:
        raw = tl.dot(x, tl.trans(w)) * scale
    else:
        mask = (rows < n)[:, None] & (f < F)[None, :]
        raw = tl.load(at + f[None, :], mask=mask, other=0.0).to(tl.float32)
    return raw


@triton.jit
def _sine(raw, f, F: tl.constexpr, QUARTERS: tl.constexpr):
    """sin of the first half of the features, cos of the second; QUARTERS of a turn on."""
    turns = raw * 0.15915494309189535 + tl.where(f < F // 2, 0.0, 0.25)[None, :] + QUARTERS * 0.25
    turns -= tl.floor(turns + 0.5)
    turns = tl.where(turns > 0.25, 0.5 - turns, tl.where(turns < -0.25, -0.5 - turns, turns))
    x = turns * 6.283185307179586
    y = x * x
    return x * (1 - y / 6 * (1 - y / 20 * (1 - y / 42 * (1 - y / 72))))


@triton.jit
def features_of(raw, shift, f, c, F: tl.constexpr, KIND: tl.constexpr):
    """φ, (W, T) in float32; 0 beyond the last feature."""
    if KIND == "exp":
        made = tl.exp(raw - shift[:, None])
    elif KIND == "elu":
        made = tl.where(raw > 0, raw + 1.0, tl.exp(tl.minimum(raw, 0.0)))
    elif KIND == "relu":
        made = tl.maximum(raw, 0.0) + c
    elif KIND == "trig":
        made = _sine(raw, f, F, 0) * c
    else:
        made = raw
    return tl.where((f < F)[None, :], made, 0.0)


@triton.jit
def slope_of(grad, raw, made, f, c, F: tl.constexpr, KIND: tl.constexpr):
    """The gradient of `raw` from that of φ."""
    if KIND == "exp":
        grad = grad * made
    elif KIND == "elu":
        grad = grad * tl.minimum(made.to(tl.float32), 1.0)
    elif KIND == "relu":
        grad = tl.where(raw > 0, grad, 0.0)
    elif KIND == "trig":
        grad = grad * _sine(raw, f, F, 1) * c
    return tl.where((f < F)[None, :], grad, 0.0)


@triton.jit
def numbers_of(ptr, line, rows, n, other, USED: tl.constexpr):
    """One number per row, (W); `other` beyond the end, and everywhere if not used."""
    if USED:
        found = tl.load(ptr + line.to(tl.int64) * n + rows, mask=rows < n, other=other)
    else:
        found = tl.where(rows < n, other, other)
    return found


@triton.jit
def seen(scores, since, weight, GATED: tl.constexpr):
    """Scores (W, W) of queries by keys times D: 0 for later keys."""
    i = tl.arange(0, scores.shape[0])
    seen = i[:, None] >= i[None, :]
    if GATED:
        left = tl.where(seen, since[:, None] - since[None, :], 0.0)
        scores = scores * tl.exp(left) * weight[None, :]
    return tl.where(seen, scores, 0.0)


@triton.jit
def sums_at(
    near_ptr, total_ptr, far_ptr, place, segment, left, f, P: tl.constexpr, E: tl.constexpr
):
    """S (T, E) and z (T) at the border of a chunk, in float32."""
    at = f[:, None] * E + tl.arange(0, E)[None, :]
    far = far_ptr + segment * (P * E + P)
    sums = tl.load(near_ptr + place * (P * E) + at).to(tl.float32) + left * tl.load(far + at)
    return sums, tl.load(total_ptr + place * P + f) + left * tl.load(far + P * E + f)

# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels of causal linear attention: features, sums, values and gradients.

    num_i = Σ_{j≤i} D_ij (φ(q_i)·φ(k_j)) v_j,   den_i = Σ_{j≤i} D_ij φ(q_i)·φ(k_j) + ε
    D_ij = w_j exp(a_{j+1} + … + a_i),   out = num / max(den, floor)

A line (one head of one row) is cut into chunks of W tokens. `sums_kernel` walks the chunks of one
segment and notes S = Σ φ(k) vᵀ and z = Σ φ(k) before each; `prefix_kernel` sums over segments; then
`forward_kernel` computes every chunk on its own. The gradients are those of two plain products,
dnum = dout / den and dden = −(dout·out) / den: the same `sums_kernel` runs from the end over φ(q)
and dnum (R and r), and `backward_kernel` computes dq, dk and dv of every chunk on its own.

S before chunk u is `near` (in bfloat16, since its segment began) plus `far` (float32, before the
segment), the latter times what the decay leaves of it. Letters and features: `feature_map_tiles`.
Strides are those of (b, h, n, width) tensors in any memory order; the last axis is contiguous.
Other tensors are contiguous: one number per token, (lines, n).
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.linear_attention.tiles import (
    block_of,
    directions_of,
    features_of,
    input_gradient,
    input_of,
    numbers_of,
    raw_tile,
    row_addresses,
    seen,
    slope_of,
    sums_at,
)


@triton.jit
def top_kernel(
    x_ptr, w_ptr, top_ptr, half_ptr, x_b, x_h, x_n, heads, n, chunks, scale,
    W: tl.constexpr, T: tl.constexpr, F: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The largest s·ω·x of each row, and ‖s·x‖² / 2."""
    line, rows = tl.program_id(0) // chunks, tl.program_id(0) % chunks * W + tl.arange(0, W)
    x = block_of(x_ptr, line, heads, x_b, x_h, x_n, rows, n, D)
    top = tl.full([W], float("-inf"), tl.float32)
    for tile in range(0, P // T):
        f = tile * T + tl.arange(0, T)
        raw = tl.dot(x, tl.trans(directions_of(w_ptr, line, heads, f, P, D))) * scale
        top = tl.maximum(top, tl.max(tl.where((f < F)[None, :], raw, float("-inf")), 1))
    long = x.to(tl.float32) * scale
    here = line.to(tl.int64) * n + rows
    tl.store(top_ptr + here, top, mask=rows < n)
    tl.store(half_ptr + here, tl.sum(long * long, 1) / 2, mask=rows < n)


@triton.jit
def sums_kernel(
    x_ptr, y_ptr, o_ptr, w_ptr, unit_ptr, shift_ptr, weight_ptr, decay_ptr, den_ptr, dden_ptr,
    near_ptr, total_ptr, far_ptr, span_ptr, fall_ptr,
    x_b, x_h, x_n, y_b, y_h, y_n, o_b, o_h, o_n, heads, n, chunks, segments, walk, scale, c, floor,
    W: tl.constexpr, T: tl.constexpr, F: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """S and z before each chunk of a segment, and of all of it; AFTER: R, r and dden, from the end.

    x, y are k, v; AFTER q, dout. `walk` is the number of chunks of a segment, `span` the log-decay
    between the border of the segment and that of the chunk, `fall` that of the whole segment.
    """
    tile, at = tl.program_id(0) % (P // T), tl.program_id(0) // (P // T)
    line, first = at // segments, at % segments * walk
    f = tile * T + tl.arange(0, T)
    cell = f[:, None] * E + tl.arange(0, E)[None, :]
    w = directions_of(w_ptr, line, heads, f, P, D)
    sums, total, past = tl.zeros([T, E], tl.float32), tl.zeros([T], tl.float32), 0.0
    count = tl.minimum(walk, chunks - first)
    for step in range(0, count):
        chunk = first + count - 1 - step if AFTER else first + step
        place = line.to(tl.int64) * chunks + chunk
        tl.store(near_ptr + place * (P * E) + cell, sums.to(near_ptr.dtype.element_ty))
        tl.store(total_ptr + place * P + f, total)
        rows = chunk * W + tl.arange(0, W)
        y = block_of(y_ptr, line, heads, y_b, y_h, y_n, rows, n, E)
        x = block_of(x_ptr, line, heads, x_b, x_h, x_n, rows, n, D)
        x = input_of(x, unit_ptr, line, heads, D, KIND)
        shift = numbers_of(shift_ptr, line, rows, n, 0.0, KIND == "exp")
        x_at = row_addresses(x_ptr, line, heads, x_b, x_h, x_n, rows)
        raw = raw_tile(x, x_at, w, rows, n, f, scale, F, D)
        made = features_of(raw, shift, f, c, F, KIND).to(y.dtype)
        share, each = tl.where(rows < n, 1.0, 0.0), y.to(tl.float32)
        if AFTER:
            den = numbers_of(den_ptr, line, rows, n, 1.0, True)
            o = block_of(o_ptr, line, heads, o_b, o_h, o_n, rows, n, E)
            share = tl.where(den > floor, -tl.sum(each * o.to(tl.float32), 1) / den, 0.0)
            tl.store(dden_ptr + line.to(tl.int64) * n + rows, share, mask=rows < n)
            each = each / den[:, None]
        if GATED:
            decay = numbers_of(decay_ptr, line, rows, n, 0.0, True)
            since, fall = tl.cumsum(decay, 0), tl.sum(decay, 0)
            tl.store(span_ptr + place, past)
            past += fall
            kept = tl.exp(since)
            if not AFTER:
                weight = numbers_of(weight_ptr, line, rows, n, 0.0, True)
                kept = tl.exp(fall - since) * weight
            share, each = share * kept, each * kept[:, None]
            sums, total = sums * tl.exp(fall), total * tl.exp(fall)
        sums = tl.dot(tl.trans(made), each.to(y.dtype), sums)
        total += tl.sum(made.to(tl.float32) * share[:, None], 0)
    far = far_ptr + at.to(tl.int64) * (P * E + P)
    tl.store(far + cell, sums)
    tl.store(far + P * E + f, total)
    if GATED:
        tl.store(fall_ptr + at, past)


@triton.jit
def prefix_kernel(
    far_ptr, fall_ptr, segments, size,
    BLOCK: tl.constexpr, GATED: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """In place: each segment's sums become those of all earlier, or all later, segments."""
    line, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(0, segments):
        place = line * segments + (segments - 1 - step if AFTER else step)
        own = tl.load(far_ptr + place * size + at, mask=held, other=0.0)
        tl.store(far_ptr + place * size + at, total, mask=held)
        if GATED:
            total = total * tl.exp(tl.load(fall_ptr + place))
        total += own


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr,
    w_ptr, unit_ptr, shift_q_ptr, shift_k_ptr, weight_ptr, decay_ptr, den_ptr,
    near_ptr, total_ptr, far_ptr, span_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n,
    heads, n, chunks, segments, walk, scale, c, floor, eps,
    W: tl.constexpr, T: tl.constexpr, F: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Values and denominators of one chunk."""
    place = tl.program_id(0).to(tl.int64)
    line, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    segment = line.to(tl.int64) * segments + chunk // walk
    rows = chunk * W + tl.arange(0, W)
    v = block_of(v_ptr, line, heads, v_b, v_h, v_n, rows, n, E)
    q = block_of(q_ptr, line, heads, q_b, q_h, q_n, rows, n, D)
    q = input_of(q, unit_ptr, line, heads, D, KIND)
    k = block_of(k_ptr, line, heads, k_b, k_h, k_n, rows, n, D)
    k = input_of(k, unit_ptr, line, heads, D, KIND)
    left = 1.0
    q_at = row_addresses(q_ptr, line, heads, q_b, q_h, q_n, rows)
    k_at = row_addresses(k_ptr, line, heads, k_b, k_h, k_n, rows)
    shift_q = numbers_of(shift_q_ptr, line, rows, n, 0.0, KIND == "exp")
    shift_k = numbers_of(shift_k_ptr, line, rows, n, 0.0, KIND == "exp")
    weight = numbers_of(weight_ptr, line, rows, n, 0.0, GATED)
    since = tl.cumsum(numbers_of(decay_ptr, line, rows, n, 0.0, GATED), 0)
    if GATED:
        left = tl.exp(tl.load(span_ptr + place))
    scores, num = tl.zeros([W, W], tl.float32), tl.zeros([W, E], tl.float32)
    den = tl.zeros([W], tl.float32)
    for tile in range(0, P // T):
        f = tile * T + tl.arange(0, T)
        w = directions_of(w_ptr, line, heads, f, P, D)
        raw_q = raw_tile(q, q_at, w, rows, n, f, scale, F, D)
        raw_k = raw_tile(k, k_at, w, rows, n, f, scale, F, D)
        fq = features_of(raw_q, shift_q, f, c, F, KIND).to(v.dtype)
        fk = features_of(raw_k, shift_k, f, c, F, KIND).to(v.dtype)
        sums, total = sums_at(near_ptr, total_ptr, far_ptr, place, segment, left, f, P, E)
        scores = tl.dot(fq, tl.trans(fk), scores)
        num = tl.dot(fq, sums.to(v.dtype), num)
        den += tl.sum(fq.to(tl.float32) * total[None, :], 1)
    if GATED:
        num, den = num * tl.exp(since)[:, None], den * tl.exp(since)
    scores = seen(scores, since, weight, GATED)
    num = tl.dot(scores.to(v.dtype), v, num)
    den = tl.maximum(den + tl.sum(scores, 1) + eps, floor)
    o_at = row_addresses(o_ptr, line, heads, o_b, o_h, o_n, rows) + tl.arange(0, E)[None, :]
    out = (num / den[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_at, out, mask=(rows < n)[:, None])
    tl.store(den_ptr + line.to(tl.int64) * n + rows, den, mask=rows < n)


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, dq_ptr, dk_ptr, dv_ptr,
    w_ptr, unit_ptr, shift_q_ptr, shift_k_ptr, weight_ptr, decay_ptr, den_ptr, dden_ptr,
    near_ptr, total_ptr, far_ptr, span_ptr, near_r_ptr, total_r_ptr, far_r_ptr, span_r_ptr,
    dunit_ptr, tally_q_ptr, tally_k_ptr, cross_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, g_b, g_h, g_n,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    heads, n, chunks, segments, walk, scale, c,
    W: tl.constexpr, T: tl.constexpr, F: tl.constexpr, P: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """dq, dk, dv of one chunk. LEARNED: also what the gradients of weights and decays are made of.

    Those are tallies φ(q)·dφ(q) and φ(k)·dφ(k) per row, and ⟨S, R⟩ at the end of the chunk.
    """
    place = tl.program_id(0).to(tl.int64)
    line, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    segment = line.to(tl.int64) * segments + chunk // walk
    rows = chunk * W + tl.arange(0, W)
    real = (rows < n)[:, None]
    v = block_of(v_ptr, line, heads, v_b, v_h, v_n, rows, n, E)
    g = block_of(g_ptr, line, heads, g_b, g_h, g_n, rows, n, E)
    den = numbers_of(den_ptr, line, rows, n, 1.0, True)
    dden = numbers_of(dden_ptr, line, rows, n, 0.0, True)
    dnum = (g.to(tl.float32) / den[:, None]).to(v.dtype)
    q = block_of(q_ptr, line, heads, q_b, q_h, q_n, rows, n, D)
    q = input_of(q, unit_ptr, line, heads, D, KIND)
    k = block_of(k_ptr, line, heads, k_b, k_h, k_n, rows, n, D)
    k = input_of(k, unit_ptr, line, heads, D, KIND)
    left, left_r = 1.0, 1.0
    q_at = row_addresses(q_ptr, line, heads, q_b, q_h, q_n, rows)
    k_at = row_addresses(k_ptr, line, heads, k_b, k_h, k_n, rows)
    dq_at = row_addresses(dq_ptr, line, heads, dq_b, dq_h, dq_n, rows)
    dk_at = row_addresses(dk_ptr, line, heads, dk_b, dk_h, dk_n, rows)
    shift_q = numbers_of(shift_q_ptr, line, rows, n, 0.0, KIND == "exp")
    shift_k = numbers_of(shift_k_ptr, line, rows, n, 0.0, KIND == "exp")
    weight = numbers_of(weight_ptr, line, rows, n, 0.0, GATED)
    decay = numbers_of(decay_ptr, line, rows, n, 0.0, GATED)
    since, fall = tl.cumsum(decay, 0), tl.sum(decay, 0)
    if GATED:
        left, left_r = tl.exp(tl.load(span_ptr + place)), tl.exp(tl.load(span_r_ptr + place))
    kept, reach = tl.exp(since), tl.exp(fall - since) * weight
    back = tl.dot(dnum, tl.trans(v)) + dden[:, None]
    back = seen(back, since, weight, GATED).to(v.dtype)
    scores, dq = tl.zeros([W, W], tl.float32), tl.zeros([W, D if D > 0 else 16], tl.float32)
    tally = tl.zeros([W], tl.float32)
    for tile in range(0, P // T):
        f = tile * T + tl.arange(0, T)
        w = directions_of(w_ptr, line, heads, f, P, D)
        raw = raw_tile(k, k_at, w, rows, n, f, scale, F, D)
        fk = features_of(raw, shift_k, f, c, F, KIND).to(v.dtype)
        s, z = sums_at(near_ptr, total_ptr, far_ptr, place, segment, left, f, P, E)
        dfq = tl.dot(dnum, tl.trans(s.to(v.dtype))) + dden[:, None] * z[None, :]
        if GATED:
            dfq = dfq * kept[:, None]
        dfq = tl.dot(back, fk, dfq)
        raw = raw_tile(q, q_at, w, rows, n, f, scale, F, D)
        fq = features_of(raw, shift_q, f, c, F, KIND).to(v.dtype)
        scores = tl.dot(fq, tl.trans(fk), scores)
        if LEARNED:
            tally += tl.sum(fq * dfq, 1)
        dfq = slope_of(dfq, raw, fq, f, c, F, KIND).to(v.dtype)
        if D > 0:
            dq = tl.dot(dfq, w, dq)
        else:
            tl.store(dq_at + f[None, :], dfq, mask=real & (f < F)[None, :])
    if D > 0:
        dq = dq * scale
        if KIND == "trig":
            x = block_of(q_ptr, line, heads, q_b, q_h, q_n, rows, n, D)
            dq, dunit = input_gradient(dq, x, unit_ptr, line, heads, D)
        tl.store(dq_at + tl.arange(0, D)[None, :], dq.to(v.dtype), mask=real)
    if LEARNED:
        tl.store(tally_q_ptr + place * W + tl.arange(0, W), tally)
    scores = seen(scores, since, weight, GATED).to(v.dtype)
    dv, back = tl.dot(tl.trans(scores), dnum), tl.trans(back)
    dk, cross = tl.zeros([W, D if D > 0 else 16], tl.float32), 0.0
    tally = tl.zeros([W], tl.float32)
    for tile in range(0, P // T):
        f = tile * T + tl.arange(0, T)
        w = directions_of(w_ptr, line, heads, f, P, D)
        raw = raw_tile(q, q_at, w, rows, n, f, scale, F, D)
        fq = features_of(raw, shift_q, f, c, F, KIND).to(v.dtype)
        r, y = sums_at(near_r_ptr, total_r_ptr, far_r_ptr, place, segment, left_r, f, P, E)
        hr = r.to(v.dtype)
        dfk = tl.dot(v, tl.trans(hr)) + y[None, :]
        raw = raw_tile(k, k_at, w, rows, n, f, scale, F, D)
        fk = features_of(raw, shift_k, f, c, F, KIND).to(v.dtype)
        if GATED:
            dfk = dfk * reach[:, None]
            dv = tl.dot((fk * reach[:, None]).to(v.dtype), hr, dv)
        else:
            dv = tl.dot(fk, hr, dv)
        if LEARNED:
            cross += tl.sum(fk * dfk)
        dfk = tl.dot(back, fq, dfk)
        if LEARNED or KIND == "exp":
            tally += tl.sum(fk * dfk, 1)
        dfk = slope_of(dfk, raw, fk, f, c, F, KIND).to(v.dtype)
        if D > 0:
            dk = tl.dot(dfk, w, dk)
        else:
            tl.store(dk_at + f[None, :], dfk, mask=real & (f < F)[None, :])
    dv_at = row_addresses(dv_ptr, line, heads, dv_b, dv_h, dv_n, rows) + tl.arange(0, E)[None, :]
    tl.store(dv_at, dv.to(v.dtype), mask=real)
    if D > 0:
        dk = dk * scale
        if KIND == "exp":
            dk -= k.to(tl.float32) * (scale * scale * tally)[:, None]
        if KIND == "trig":
            x = block_of(k_ptr, line, heads, k_b, k_h, k_n, rows, n, D)
            dk, of_scale = input_gradient(dk, x, unit_ptr, line, heads, D)
            tl.store(dunit_ptr + place * D + tl.arange(0, D), dunit + of_scale)
        tl.store(dk_at + tl.arange(0, D)[None, :], dk.to(v.dtype), mask=real)
    if LEARNED:
        for tile in range(0, P // T):
            f = tile * T + tl.arange(0, T)
            s, z = sums_at(near_ptr, total_ptr, far_ptr, place, segment, left, f, P, E)
            r, y = sums_at(near_r_ptr, total_r_ptr, far_r_ptr, place, segment, left_r, f, P, E)
            cross += tl.exp(fall) * (tl.sum(s * r) + tl.sum(z * y))
        tl.store(tally_k_ptr + place * W + tl.arange(0, W), tally)
        tl.store(cross_ptr + place, cross)

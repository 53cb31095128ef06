# type: ignore  # compiled by Triton, whose stubs describe the host side alone
"""Triton kernels of block-sparse attention: forward, gradient of queries, gradient of keys.

One program takes `ROWS` queries of a block (or keys, for a share of their block) and walks the list
of visible blocks, first the partial ones, masked by their tiles, then the full ones. Softmax is
accumulated online in base 2, its maximum that of scores before they are scaled: `scale` is above 0.
`INIT` continues from an earlier result over other keys: its values and log-sum-exp are the starting
point, which merges the two exactly and for free.

`PICKED`: each row of the batch has a layout of its own, by its number among several.

`fold` residue classes of positions are sequences of their own: a step along one is `fold` tokens,
so the strides given for n and m are those of such a step, and n and m count one sequence.

Dropout reads what rows and columns drew from tables (`dropout.py`).

Papers: Dao 2023, FlashAttention-2, https://arxiv.org/abs/2307.08691
Strides are those of (b, h, n, d) tensors in any memory order; the last axis is contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.dropout_kernels import draws, kept_factors


@triton.jit
def _masked(
    scores, tiles, tile, i, j, row_labels, col_labels, rows, cols, n, m, fold,
    BLOCK: tl.constexpr, MASKED: tl.constexpr, LABELLED: tl.constexpr,
):  # fmt: skip
    """Scores of rows i and columns j of one tile, −∞ where they are not seen.

    `rows` and `cols` are their tensor indices.
    """
    if MASKED:
        bias = tl.load(tiles + tile * BLOCK * BLOCK + i[:, None] * BLOCK + j[None, :])
        scores += bias.to(tl.float32)
    if LABELLED:
        a = tl.load(row_labels + rows * fold, mask=rows < n, other=-2)
        b = tl.load(col_labels + cols * fold, mask=cols < m, other=-3)
        scores = tl.where(a[:, None] == b[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _row(start, middle, row_order, pick, PARTS: tl.constexpr, PICKED: tl.constexpr):
    """The block of queries of this program, and its list; `PICKED`: in the layout of its row."""
    rows, layout = tl.num_programs(1) // PARTS, 0
    if PICKED:
        layout = tl.load(pick)
    u = tl.load(row_order + layout * rows + tl.program_id(1) // PARTS)
    entry = start + layout * (rows + 1) + u
    return u, tl.load(entry), tl.load(middle + layout * rows + u), tl.load(entry + 1)


@triton.jit
def _own(ROWS: tl.constexpr, PARTS: tl.constexpr):
    """Places inside its block of what this program takes; the parts of a block stand together."""
    return tl.program_id(1) % PARTS * ROWS + tl.arange(0, ROWS)


@triton.jit
def _walk_keys(
    acc, top, total, q, k_base, v_base, k_stride, v_stride, first, last, cols, tile_of, tiles,
    query_labels, key_labels, i, rows, n, m, fold, scale, row_draws, col_draws, threshold, grow,
    BLOCK: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, MASKED: tl.constexpr, LABELLED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Online softmax of queries `rows`, i of their block, over blocks first..last of its list."""
    d = tl.arange(0, WIDTH)
    if DROPS:
        drawn = draws(row_draws, rows, n)[:, None]
    for it in tl.range(first * (BLOCK // STEP), last * (BLOCK // STEP), loop_unroll_factor=UNROLL):
        entry = it // (BLOCK // STEP)
        j = it % (BLOCK // STEP) * STEP + tl.arange(0, STEP)
        at = tl.load(cols + entry) * BLOCK + j
        wide = at[:, None].to(tl.int64)
        if EVEN:
            k = tl.load(k_base + wide * k_stride + d[None, :])
            v = tl.load(v_base + wide * v_stride + d[None, :])
        else:
            k = tl.load(k_base + wide * k_stride + d[None, :], mask=at[:, None] < m, other=0)
            v = tl.load(v_base + wide * v_stride + d[None, :], mask=at[:, None] < m, other=0)
        scores = tl.dot(q, tl.trans(k))
        if MASKED or LABELLED:
            scores = _masked(
                scores, tiles, tl.load(tile_of + entry), i, j, query_labels, key_labels, rows, at,
                n, m, fold, BLOCK, MASKED, LABELLED,
            )  # fmt: skip
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top * scale)
        weights = tl.exp2(scores * scale - base[:, None])
        shrink = tl.exp2(top * scale - base)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        if DROPS:
            weights *= kept_factors(drawn, draws(col_draws, at, m)[None, :], threshold, grow)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        top = new_top
    return acc, top, total


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n, s_b, s_h, s_n,
    start, middle, cols, tile_of, tiles, row_order, pick, query_labels, key_labels,
    heads, group, fold, n, m, scale, row_draws, col_draws, threshold, grow,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, LABELLED: tl.constexpr, DROPS: tl.constexpr,
    PICKED: tl.constexpr, INIT: tl.constexpr,
):  # fmt: skip
    """Values and log-sum-exp of queries of one block and one head."""
    line = tl.program_id(0)
    b, r = (line // (heads * fold)).to(tl.int64), (line // heads % fold).to(tl.int64)
    h = (line % heads).to(tl.int64)
    u, first, middle_at, last = _row(start, middle, row_order, pick + b, BLOCK // ROWS, PICKED)
    unit = (b * heads + h) * fold + r
    row_draws += unit * n
    col_draws += unit * m
    i = _own(ROWS, BLOCK // ROWS)
    rows = u * BLOCK + i
    d = tl.arange(0, WIDTH)
    real = rows < n
    wide = rows[:, None].to(tl.int64)
    q_at = q_ptr + b * q_b + h * q_h + r * (q_n // fold) + wide * q_n + d[None, :]
    o_at = out_ptr + b * o_b + h * o_h + r * (o_n // fold) + wide * o_n + d[None, :]
    s_at = lse_ptr + b * s_b + h * s_h + r * (s_n // fold) + rows.to(tl.int64) * s_n
    k_base = k_ptr + b * k_b + (h // group) * k_h + r * (k_n // fold)
    v_base = v_ptr + b * v_b + (h // group) * v_h + r * (v_n // fold)
    q = tl.load(q_at, mask=real[:, None], other=0)
    if INIT:
        top = tl.load(s_at, mask=real, other=float("-inf")) * (1.4426950408889634 / scale)
        total = tl.where(top == float("-inf"), 0.0, 1.0)
        acc = tl.load(o_at, mask=real[:, None], other=0).to(tl.float32)
    else:
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, WIDTH], tl.float32)
    labels_q, labels_k = query_labels + b * n * fold + r, key_labels + b * m * fold + r
    acc, top, total = _walk_keys(
        acc, top, total, q, k_base, v_base, k_n, v_n, first, middle_at, cols, tile_of, tiles,
        labels_q, labels_k, i, rows, n, m, fold, scale, row_draws, col_draws, threshold, grow,
        BLOCK, STEP, UNROLL, WIDTH, EVEN, True, LABELLED, DROPS,
    )  # fmt: skip
    acc, top, total = _walk_keys(
        acc, top, total, q, k_base, v_base, k_n, v_n, middle_at, last, cols, tile_of, tiles,
        labels_q, labels_k, i, rows, n, m, fold, scale, row_draws, col_draws, threshold, grow,
        BLOCK, STEP, UNROLL, WIDTH, EVEN, False, LABELLED, DROPS,
    )  # fmt: skip
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    lse = tl.where(alive, (top * scale + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    acc = acc * (1.0 / safe)[:, None]
    tl.store(o_at, acc.to(out_ptr.dtype.element_ty), mask=real[:, None])
    tl.store(s_at, lse, mask=real)


@triton.jit
def _walk_keys_back(
    dq, q, dout, base, delta, k_base, v_base, k_stride, v_stride, first, last, cols, tile_of,
    tiles, query_labels, key_labels, i, rows, n, m, fold, scale, row_draws, col_draws, threshold,
    grow, BLOCK: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, MASKED: tl.constexpr, LABELLED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradient of queries `rows`, i of their block, over the blocks first..last of its list."""
    d = tl.arange(0, WIDTH)
    if DROPS:
        drawn = draws(row_draws, rows, n)[:, None]
    for it in tl.range(first * (BLOCK // STEP), last * (BLOCK // STEP), loop_unroll_factor=UNROLL):
        entry = it // (BLOCK // STEP)
        j = it % (BLOCK // STEP) * STEP + tl.arange(0, STEP)
        at = tl.load(cols + entry) * BLOCK + j
        wide = at[:, None].to(tl.int64)
        if EVEN:
            k = tl.load(k_base + wide * k_stride + d[None, :])
            v = tl.load(v_base + wide * v_stride + d[None, :])
        else:
            k = tl.load(k_base + wide * k_stride + d[None, :], mask=at[:, None] < m, other=0)
            v = tl.load(v_base + wide * v_stride + d[None, :], mask=at[:, None] < m, other=0)
        scores = tl.dot(q, tl.trans(k))
        if MASKED or LABELLED:
            scores = _masked(
                scores, tiles, tl.load(tile_of + entry), i, j, query_labels, key_labels, rows, at,
                n, m, fold, BLOCK, MASKED, LABELLED,
            )  # fmt: skip
        p = tl.exp2(scores * scale - base[:, None])
        dp = tl.dot(dout, tl.trans(v))
        if DROPS:
            dp *= kept_factors(drawn, draws(col_draws, at, m)[None, :], threshold, grow)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, lse_ptr, dlse_ptr, base_ptr, delta_ptr, dq_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n, g_b, g_h, g_n,
    s_b, s_h, s_n, x_b, x_h, x_n,
    start, middle, cols, tile_of, tiles, row_order, pick, query_labels, key_labels,
    heads, group, fold, n, m, scale, natural_scale, row_draws, col_draws, threshold, grow,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, LABELLED: tl.constexpr, DROPS: tl.constexpr,
    PICKED: tl.constexpr, FIRST: tl.constexpr, HAS_DLSE: tl.constexpr,
):  # fmt: skip
    """dq of queries of one block; the first part also writes what all gradients need of each row.

    base = lse in base 2, ∞ for a row that sees nothing,   delta = dout·out − dlse
    """
    line = tl.program_id(0)
    b, r = (line // (heads * fold)).to(tl.int64), (line // heads % fold).to(tl.int64)
    h = (line % heads).to(tl.int64)
    u, first, middle_at, last = _row(start, middle, row_order, pick + b, BLOCK // ROWS, PICKED)
    unit = (b * heads + h) * fold + r
    row_draws += unit * n
    col_draws += unit * m
    i = _own(ROWS, BLOCK // ROWS)
    rows = u * BLOCK + i
    d = tl.arange(0, WIDTH)
    real = rows < n
    wide = rows[:, None].to(tl.int64)
    q_at = q_ptr + b * q_b + h * q_h + r * (q_n // fold) + wide * q_n + d[None, :]
    q = tl.load(q_at, mask=real[:, None], other=0)
    dout_at = dout_ptr + b * g_b + h * g_h + r * (g_n // fold) + wide * g_n + d[None, :]
    dout = tl.load(dout_at, mask=real[:, None], other=0)
    s_at = b * s_b + h * s_h + r * (s_n // fold) + rows.to(tl.int64) * s_n
    if FIRST:
        out_at = out_ptr + b * o_b + h * o_h + r * (o_n // fold) + wide * o_n + d[None, :]
        out = tl.load(out_at, mask=real[:, None], other=0)
        delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
        if HAS_DLSE:
            delta -= tl.load(dlse_ptr + s_at, mask=real, other=0)
        tl.store(delta_ptr + s_at, delta, mask=real)
        lse = tl.load(lse_ptr + s_at, mask=real, other=0)
        # A row that sees nothing has no weights: exp2 of −∞ is 0, whatever its scores.
        base = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
        tl.store(base_ptr + s_at, base, mask=real)
    else:
        delta = tl.load(delta_ptr + s_at, mask=real, other=0)
        base = tl.load(base_ptr + s_at, mask=real, other=0)
    k_base = k_ptr + b * k_b + (h // group) * k_h + r * (k_n // fold)
    v_base = v_ptr + b * v_b + (h // group) * v_h + r * (v_n // fold)
    labels_q, labels_k = query_labels + b * n * fold + r, key_labels + b * m * fold + r
    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    dq = _walk_keys_back(
        dq, q, dout, base, delta, k_base, v_base, k_n, v_n, first, middle_at, cols, tile_of, tiles,
        labels_q, labels_k, i, rows, n, m, fold, scale, row_draws, col_draws, threshold, grow,
        BLOCK, STEP, UNROLL, WIDTH, EVEN, True, LABELLED, DROPS,
    )  # fmt: skip
    dq = _walk_keys_back(
        dq, q, dout, base, delta, k_base, v_base, k_n, v_n, middle_at, last, cols, tile_of, tiles,
        labels_q, labels_k, i, rows, n, m, fold, scale, row_draws, col_draws, threshold, grow,
        BLOCK, STEP, UNROLL, WIDTH, EVEN, False, LABELLED, DROPS,
    )  # fmt: skip
    dq = dq * natural_scale
    dq_at = dq_ptr + b * x_b + h * x_h + r * (x_n // fold) + wide * x_n + d[None, :]
    if not FIRST:
        dq += tl.load(dq_at, mask=real[:, None], other=0).to(tl.float32)
    tl.store(dq_at, dq.to(dq_ptr.dtype.element_ty), mask=real[:, None])


@triton.jit
def _walk_queries_back(
    dk, dv, k, v, q_base, dout_base, its_base, delta_base, q_stride, g_stride, s_stride,
    first, last, rows_of, tile_of, tiles, query_labels, key_labels, j, cols, n, m, fold, scale,
    row_draws, col_draws, threshold, grow,
    BLOCK: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, MASKED: tl.constexpr, LABELLED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of keys `cols`, j of their block, over the blocks first..last of its list."""
    d = tl.arange(0, WIDTH)
    if DROPS:
        drawn = draws(col_draws, cols, m)[:, None]
    for it in tl.range(first * (BLOCK // STEP), last * (BLOCK // STEP), loop_unroll_factor=UNROLL):
        entry = it // (BLOCK // STEP)
        i = it % (BLOCK // STEP) * STEP + tl.arange(0, STEP)
        at = tl.load(rows_of + entry) * BLOCK + i
        wide = at[:, None].to(tl.int64)
        if EVEN:
            q = tl.load(q_base + wide * q_stride + d[None, :])
            dout = tl.load(dout_base + wide * g_stride + d[None, :])
            base = tl.load(its_base + at.to(tl.int64) * s_stride)
            delta = tl.load(delta_base + at.to(tl.int64) * s_stride)
        else:
            q = tl.load(q_base + wide * q_stride + d[None, :], mask=at[:, None] < n, other=0)
            dout = tl.load(dout_base + wide * g_stride + d[None, :], mask=at[:, None] < n, other=0)
            base = tl.load(its_base + at.to(tl.int64) * s_stride, mask=at < n, other=0)
            delta = tl.load(delta_base + at.to(tl.int64) * s_stride, mask=at < n, other=0)
        # Keys × queries: the products below read p and ds as they come, without a transpose.
        scores = tl.dot(k, tl.trans(q))
        if MASKED or LABELLED:
            scores = _masked(
                scores, tiles, tl.load(tile_of + entry), j, i, key_labels, query_labels, cols, at,
                m, n, fold, BLOCK, MASKED, LABELLED,
            )  # fmt: skip
        p = tl.exp2(scores * scale - base[None, :])
        dp = tl.dot(v, tl.trans(dout))
        if DROPS:
            asked = draws(row_draws, at, n)[None, :]
            weights = p * kept_factors(asked, drawn, threshold, grow)
            ds = weights * dp - p * delta[None, :]
        else:
            weights = p
            ds = p * (dp - delta[None, :])
        dv = tl.dot(weights.to(dout.dtype), dout, dv)
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, base_ptr, delta_ptr, dk_ptr, dv_ptr, shared_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, g_b, g_h, g_n, s_b, s_h, s_n,
    x_b, x_h, x_n, y_b, y_h, y_n, shared_line,
    seg_col, seg_first, seg_middle, seg_last, seg_shared, rows_of, tile_of, tiles, pick,
    query_labels, key_labels, key_heads, group, fold, n, m, scale, natural_scale,
    row_draws, col_draws, threshold, grow,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, LABELLED: tl.constexpr, DROPS: tl.constexpr,
    PICKED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """dk and dv of keys of one share of a block, summed over the query heads of its group.

    A block that several shares work on collects in `shared`, (key heads, blocks, 2, BLOCK, WIDTH).
    """
    line = tl.program_id(0)
    b, r = (line // (key_heads * fold)).to(tl.int64), (line // key_heads % fold).to(tl.int64)
    h = (line % key_heads).to(tl.int64)
    seg = tl.program_id(1) // (BLOCK // ROWS)
    if PICKED:
        seg += tl.load(pick + b) * (tl.num_programs(1) // (BLOCK // ROWS))
    j = _own(ROWS, BLOCK // ROWS)
    cols = tl.load(seg_col + seg) * BLOCK + j
    d = tl.arange(0, WIDTH)
    real = cols < m
    wide = cols[:, None].to(tl.int64)
    k_at = k_ptr + b * k_b + h * k_h + r * (k_n // fold) + wide * k_n + d[None, :]
    v_at = v_ptr + b * v_b + h * v_h + r * (v_n // fold) + wide * v_n + d[None, :]
    k = tl.load(k_at, mask=real[:, None], other=0)
    v = tl.load(v_at, mask=real[:, None], other=0)
    first, last = tl.load(seg_first + seg), tl.load(seg_last + seg)
    middle_at = tl.load(seg_middle + seg)
    labels_q, labels_k = query_labels + b * n * fold + r, key_labels + b * m * fold + r
    dk = tl.zeros([ROWS, WIDTH], tl.float32)
    dv = tl.zeros([ROWS, WIDTH], tl.float32)
    for a in range(group):
        x = h * group + a
        unit = (b * key_heads * group + x) * fold + r
        asked, read = row_draws + unit * n, col_draws + unit * m
        q_base = q_ptr + b * q_b + x * q_h + r * (q_n // fold)
        dout_base = dout_ptr + b * g_b + x * g_h + r * (g_n // fold)
        s_base = b * s_b + x * s_h + r * (s_n // fold)
        dk, dv = _walk_queries_back(
            dk, dv, k, v, q_base, dout_base, base_ptr + s_base, delta_ptr + s_base, q_n, g_n, s_n,
            first, middle_at, rows_of, tile_of, tiles, labels_q, labels_k, j, cols, n, m, fold,
            scale, asked, read, threshold, grow, BLOCK, STEP, UNROLL, WIDTH, EVEN, True, LABELLED,
            DROPS,
        )  # fmt: skip
        dk, dv = _walk_queries_back(
            dk, dv, k, v, q_base, dout_base, base_ptr + s_base, delta_ptr + s_base, q_n, g_n, s_n,
            middle_at, last, rows_of, tile_of, tiles, labels_q, labels_k, j, cols, n, m, fold,
            scale, asked, read, threshold, grow, BLOCK, STEP, UNROLL, WIDTH, EVEN, False, LABELLED,
            DROPS,
        )  # fmt: skip
    dk = dk * natural_scale
    shared = tl.load(seg_shared + seg)
    if shared >= 0:
        place = shared_ptr + line * shared_line + shared.to(tl.int64) * 2 * BLOCK * WIDTH
        place += j[:, None] * WIDTH + d[None, :]
        tl.atomic_add(place, dk)
        tl.atomic_add(place + BLOCK * WIDTH, dv)
    else:
        dk_at = dk_ptr + b * x_b + h * x_h + r * (x_n // fold) + wide * x_n + d[None, :]
        dv_at = dv_ptr + b * y_b + h * y_h + r * (y_n // fold) + wide * y_n + d[None, :]
        if ADD:
            dk += tl.load(dk_at, mask=real[:, None], other=0).to(tl.float32)
            dv += tl.load(dv_at, mask=real[:, None], other=0).to(tl.float32)
        tl.store(dk_at, dk.to(dk_ptr.dtype.element_ty), mask=real[:, None])
        tl.store(dv_at, dv.to(dv_ptr.dtype.element_ty), mask=real[:, None])

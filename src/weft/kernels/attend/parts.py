"""A lowered pattern, part by part: q, k and v into its order, attend, and the result back."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.kernels.attend.bias import Bias
from weft.kernels.attend.masking import KeyLabels, make_labels
from weft.kernels.attend.merge import merge
from weft.kernels.attend.planner import GATHER_BLOCK, Kernel
from weft.kernels.block_sparse.flex import flex_part
from weft.kernels.block_sparse.gather import gather_attention
from weft.kernels.block_sparse.triton import block_sparse_attention, block_sparse_part
from weft.kernels.dense.sdpa import torch_attention
from weft.kernels.device_cache import device_cache
from weft.kernels.planner.choice import Choice
from weft.patterns import Full, Order
from weft.patterns.lower import Part


class HeadTensors(NamedTuple):
    """What attends: queries (b, h, n, d), keys and values (b, g, m, d)."""

    q: Tensor
    k: Tensor
    v: Tensor


class AttendOptions(NamedTuple):
    """The settings of one call of `attend`."""

    valid: Tensor | None
    segments: Tensor | None
    bias: Bias | None
    scale: float
    dropout: float
    kernel: Kernel
    lse: bool
    aligned: bool = False  # queries and keys are one sequence, real tokens first in each row
    block: int = GATHER_BLOCK


def run_lowered(
    heads: HeadTensors,
    chosen: Choice,
    labels: KeyLabels | None,
    options: AttendOptions,
) -> tuple[Tensor, Tensor]:
    """Parts merge; rows computed in a separate pass replace theirs."""
    (q, k, v), lowered = heads, chosen.lowered
    options = options._replace(block=chosen.block)
    assert lowered is not None
    separate = lowered.apart
    rows = own = own_lse = None
    if separate is not None:
        rows = _index(separate.rows, -1, 0, q.device)
        own, own_lse = _run_rows(heads, separate, labels, options)
    if chosen.one_pass:
        settings = {"block": options.block, "scale": options.scale, "labels": labels}
        settings["dropout"] = options.dropout
        instead = None if rows is None or own is None or options.lse else (rows, own)
        out, lse = block_sparse_attention(q, k, v, lowered, instead=instead, **settings)
        rows = rows if instead is None else None
    else:
        parts = [_run_part(heads, part, labels, options) for part in lowered.parts]
        out, lse = merge(parts)
    if rows is not None and own is not None:
        out = out.index_copy(2, rows, own)
        lse = lse if own_lse is None else lse.index_copy(2, rows, own_lse)
    return out, lse


def _run_rows(
    heads: HeadTensors, part: Part, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor | None]:
    """Few rows over all keys: dense, by torch's kernel where it can."""
    q, k, v = heads
    plain = labels is None and options.bias is None and type(part.pattern) is Full
    if plain and not (options.lse and q.is_cuda):
        rows = _take(q, _index(part.rows, -1, 0, q.device))
        return torch_attention(rows, k, v, None, False, options)
    return _run_part(heads, part, labels, options)


def _run_part(
    heads: HeadTensors, part: Part, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor]:
    """Bring q, k and v into the order of the part, attend, and bring the result back."""
    if part.fold > 1:
        return _run_folded(heads, part, labels, options)
    (q, k, v), n, m = heads, heads.q.shape[2], heads.k.shape[2]
    rows, cols = _index(part.rows, n, m - n, q.device), _index(part.cols, m, 0, q.device)
    taken = HeadTensors(_take(q, rows), _take(k, cols), _take(v, cols))
    labels = labels and labels.take(rows, cols)
    out, lse = _attend_part(taken, part, labels, options.bias, options)
    if rows is not None and len(rows) == n:
        back = rows.argsort()
        out, lse = out[:, :, back], lse[:, :, back]
    return out, lse


def _run_folded(
    heads: HeadTensors, part: Part, labels: KeyLabels | None, options: AttendOptions
) -> tuple[Tensor, Tensor]:
    """Residue classes become rows of the batch, and each is a sequence of its own."""
    n, s, bias = heads.q.shape[2], part.fold, options.bias
    if labels is None and part.length * s > n and not part.pattern.causal:
        labels = make_labels(torch.ones_like(heads.q[:, 0, :, 0], dtype=torch.bool), None, n)
    if labels is None and bias is None:
        folded = HeadTensors(*(_fold(x, s).flatten(1, 2) for x in heads))  # (b, s·h, n / s, d)
        out, lse = _attend_part(folded, part, None, None, options)
        return _unfold(out.unflatten(1, (s, -1)), n), _unfold(lse.unflatten(1, (s, -1)), n)
    folded = HeadTensors(*(_fold(x, s).flatten(0, 1) for x in heads))  # (b·s, h, n / s, d)
    # A bias depends on the distance i − j, which grows s times as fast.
    wide = bias and (lambda head, i, j: bias(head, i * s, j * s))
    out, lse = _attend_part(folded, part, labels and labels.fold(s), wide, options)
    return _unfold(out.unflatten(0, (-1, s)), n), _unfold(lse.unflatten(0, (-1, s)), n)


def _fold(x: Tensor, s: int) -> Tensor:
    """(b, h, n, d) -> (b, s, h, n / s, d): one sequence for each residue class.

    The classes of a projection's output join its heads, or the batch, without a copy.
    """
    missing = -x.shape[2] % s
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(2, (-1, s)).permute(0, 3, 1, 2, 4)


def _unfold(x: Tensor, n: int) -> Tensor:
    """Undo `_fold`: (b, s, h, n / s, ...) -> (b, h, n, ...)."""
    return x.movedim(1, 3).flatten(2, 3)[:, :, :n]


@device_cache(256)
def _index(order: Order, count: int, start: int, device: torch.device) -> Tensor | None:
    """Where the order takes its tokens from an axis of `count` tokens; None: in natural order."""
    if type(order) is Order and order.count == count:
        return None
    return torch.as_tensor(order.positions() - start, device=device)


def _take(x: Tensor, index: Tensor | None) -> Tensor:
    """(b, h, n, d) at these indices."""
    return x if index is None else x.index_select(2, index)


def _attend_part(
    heads: HeadTensors,
    part: Part,
    labels: KeyLabels | None,
    bias: Bias | None,
    options: AttendOptions,
) -> tuple[Tensor, Tensor]:
    """One part, q, k and v in its order, by the kernel of the call."""
    settings = {"block": options.block, "scale": options.scale, "labels": labels}
    if options.kernel == "flex":
        return flex_part(*heads, part, bias=bias, **settings)
    if options.kernel == "triton":
        return block_sparse_part(*heads, part, dropout=options.dropout, **settings)
    settings["block"] = part.fit(options.block)
    return gather_attention(*heads, part, bias=bias, dropout=options.dropout, **settings)

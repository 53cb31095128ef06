"""FlexAttention from our layouts: the fused block-sparse kernel on a GPU, forward and backward.

The BlockMask is written down from the block calculus, in milliseconds and without evaluating the
pattern. Two traps are closed here. A compiled FlexAttention that passes dynamo's recompile limit
falls back silently to an unfused kernel: every pattern is compiled as a function of its own, whole
(fullgraph), so a limit that is passed raises. And a block row or column that sees everything keeps
one multiprocessor busy while the others wait: long thin parts are cut into chunks that run side by
side as rows of the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from weft.errors import Unsupported
from weft.kernels.bias import Bias
from weft.kernels.labels import Labels
from weft.kernels.merge import merge_stack
from weft.patterns.lower import Part
from weft.patterns.order import Order
from weft.patterns.region import Bools, Ints

BLOCK = 128
_THIN = 2  # a part this many blocks wide or high is thin
_CHUNK = 16  # blocks of the long side that one chunk of a thin part takes


def flex_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    scale: float,
    labels: Labels | None = None,
    bias: Bias | None = None,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    q, k, v and `labels` stand in the order of the part. On a CPU this runs unfused and forward
    only: there to be tested.
    """
    if (
        q.device.type == "cpu"
        and any(x.requires_grad for x in (q, k, v))
        and torch.is_grad_enabled()
    ):
        raise Unsupported("FlexAttention has no backward on a CPU; use kernel='gather' or 'auto'")
    b, n, m = q.shape[0], q.shape[2], k.shape[2]
    cut = _cut(n, m) if labels is None and bias is None else Cut()
    mask = _block_mask(part, cut, b, q.device, labels)
    q, k, v = (x.contiguous() for x in (q, k, v))
    if cut.rows > 1:
        q = _chunks(q, cut.rows, mask.seq_lengths[0])
        k, v = (x.repeat_interleave(cut.rows, 0) for x in (k, v))
    if cut.cols > 1:
        k, v = (_chunks(x, cut.cols, mask.seq_lengths[1]) for x in (k, v))
        q = q.repeat_interleave(cut.cols, 0)
    score = None if bias is None else _score(bias, part, q.device)
    key = (part.pattern, type(part.rows), type(part.cols), cut.kind, labels is None)
    out, lse = _call(key, q.device)(q, k, v, mask, score, scale)
    if cut.rows > 1:
        out = out.unflatten(0, (b, cut.rows)).transpose(1, 2).flatten(2, 3)[:, :, :n]
        lse = lse.unflatten(0, (b, cut.rows)).transpose(1, 2).flatten(2, 3)[:, :, :n]
    if cut.cols > 1:
        outs, lses = (x.unflatten(0, (b, cut.cols)).transpose(0, 1) for x in (out, lse))
        out, lse = merge_stack(outs, lses)
    return out, lse


@dataclass(frozen=True)
class Cut:
    """Into how many chunks the queries or the keys of a thin part are cut."""

    rows: int = 1
    cols: int = 1

    @property
    def kind(self) -> tuple[bool, bool]:
        """Which sides are cut: what a compiled kernel depends on."""
        return self.rows > 1, self.cols > 1


def _cut(n: int, m: int) -> Cut:
    high, wide = -(-n // BLOCK), -(-m // BLOCK)
    if wide <= _THIN and high >= 2 * _CHUNK:
        return Cut(rows=-(-high // _CHUNK))
    if high <= _THIN and wide >= 2 * _CHUNK:
        return Cut(cols=-(-wide // _CHUNK))
    return Cut()


def _chunks(x: Tensor, count: int, length: int) -> Tensor:
    """(b, h, n, d) -> (b·count, h, length, d), the last chunk padded with zeros."""
    x = F.pad(x, (0, 0, 0, count * length - x.shape[2]))
    return x.unflatten(2, (count, length)).transpose(1, 2).flatten(0, 1).contiguous()


def _block_mask(
    part: Part, cut: Cut, batch: int, device: torch.device, labels: Labels | None
) -> BlockMask:
    if labels is None:
        return _plain_mask(part, cut, batch, device)
    lists, sizes = _lists(part, cut, batch, device, masked=True)
    seen, keys = _seen(part, cut, sizes, device), labels.keys.contiguous()
    queries = labels.queries.expand(-1, sizes[0]).contiguous()  # (b, n)

    def seen_and_labelled(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return seen(b, h, i, j) & (queries[b, i] == keys[b, j])

    return BlockMask(sizes, *lists, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=seen_and_labelled)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve training as well
def _plain_mask(part: Part, cut: Cut, batch: int, device: torch.device) -> BlockMask:
    lists, sizes = _lists(part, cut, batch, device, masked=False)
    seen = _seen(part, cut, sizes, device)
    return BlockMask(sizes, *lists, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=seen)


def _seen(
    part: Part, cut: Cut, sizes: tuple[int, int], device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The pattern as a function of batch row, head and tensor indices."""
    test = part.pattern.bind(part.length, device)
    row, col = (_position(order, device) for order in (part.rows, part.cols))
    (high, wide), n, m = sizes, part.rows.count, part.cols.count

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cut.rows > 1:
            i = (i + b % cut.rows * high).clamp(max=n - 1)  # tables end with the queries
        if cut.cols > 1:
            j = j + b % cut.cols * wide
            return test(row(i), col(j.clamp(max=m - 1))) & (j < m)
        return test(row(i), col(j))

    return seen


def _position(order: Order, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From an index of the tensor to the position that stands there."""
    if type(order) is Order:
        return (lambda x: x + order.start) if order.start else (lambda x: x)
    table = torch.as_tensor(order.positions(), device=device)
    return lambda x: table[x.clamp(max=order.count - 1)]


def _score(bias: Bias, part: Part, device: torch.device) -> Callable[..., Tensor]:
    row, col = (_position(order, device) for order in (part.rows, part.cols))

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias(h, row(i), col(j))

    return score


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _lists(
    part: Part, cut: Cut, batch: int, device: torch.device, masked: bool
) -> tuple[tuple[Tensor | None, ...], tuple[int, int]]:
    """The eight lists of a BlockMask (partial and full blocks, by row and by column), and sizes."""
    found = part.layout(BLOCK)
    u, v, full = found.row_of, found.cols.astype(np.int64), found.full & (not masked)
    high, wide = -(-found.rows // cut.rows), -(-found.columns // cut.cols)
    if cut.cols > 1:  # keys beyond the end stand in the last block
        full = full & ((v < found.columns - 1) | (found.keys % BLOCK == 0))
    chunk = u // high if cut.rows > 1 else v // wide if cut.cols > 1 else 0 * u
    chunks = max(cut.rows, cut.cols)
    u, v = (u % high, v) if cut.rows > 1 else (u, v % wide) if cut.cols > 1 else (u, v)
    by_row = _padded(chunk, u, v, full, chunks, high)
    by_col = _padded(chunk, v, u, full, chunks, wide)
    repeat = batch if chunks > 1 else 1
    tensors = [torch.as_tensor(x).repeat(repeat, *[1] * (x.ndim - 1)) for x in by_row + by_col]
    sizes = (
        high * BLOCK if cut.rows > 1 else found.queries,
        wide * BLOCK if cut.cols > 1 else found.keys,
    )
    return tuple(t.to(device) for t in tensors), sizes


def _padded(
    chunk: Ints, row: Ints, col: Ints, full: Bools, chunks: int, rows: int
) -> list[NDArray[np.int32]]:
    """Counts (chunks, 1, rows) and lists (chunks, 1, rows, most) of partial, then of full blocks.

    Both lists have one width: the kernel steps through them with the same stride.
    """
    counts = [np.bincount((chunk * rows + row)[s], minlength=chunks * rows) for s in (~full, full)]
    most = max(1, *(int(count.max(initial=0)) for count in counts))
    made = []
    for count, chosen in zip(counts, (~full, full), strict=True):
        line, value = (chunk * rows + row)[chosen], col[chosen]
        order = np.lexsort((value, line))
        place = np.arange(len(line)) - np.repeat(np.cumsum(count) - count, count)
        lists = np.zeros((chunks * rows, most), dtype=np.int32)
        lists[line[order], place] = value[order]
        shape = (chunks, 1, rows)
        made += [count.astype(np.int32).reshape(shape), lists.reshape(*shape, most)]
    return made


def _run(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, score: Any, scale: float
) -> tuple[Tensor, Tensor]:
    out, extra = flex_attention(
        q,
        k,
        v,
        score_mod=score,
        block_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return out, extra.lse


@lru_cache(maxsize=256)
def _call(key: object, device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernel compiled for one pattern; lengths may vary without compiling each anew."""
    if device.type == "cpu":
        return _unfused
    # A copy of the code object has a compile cache, and a recompile limit, of its own.
    own = FunctionType(_run.__code__.replace(), _run.__globals__, "flex_run")
    return torch.compile(own, fullgraph=True)


def _unfused(*args: Any) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return _run(*args)

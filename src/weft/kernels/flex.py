"""FlexAttention from our layouts: the fused block-sparse kernel on a GPU, forward and backward.

The BlockMask is written down from the block calculus, in milliseconds and without evaluating the
pattern. Two traps are closed here. A compiled FlexAttention that passes dynamo's recompile limit
falls back silently to an unfused kernel: every pattern is compiled as a function of its own, whole
(fullgraph), so a limit that is passed raises. And a key block that very many rows read keeps one
multiprocessor busy in the backward pass while the others wait: such blocks are copied, each copy
serves a share of the rows, and autograd adds the copies up.
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
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from weft.errors import Unsupported
from weft.kernels.bias import Bias
from weft.kernels.labels import Labels
from weft.patterns.layout import Layout
from weft.patterns.lower import Part
from weft.patterns.order import Order
from weft.patterns.region import Bools, Ints

BLOCKS = (128,)  # block sizes the kernel is used with
_PROCESSORS = 132
_LEAST_SHARE = 16  # rows that a copy of a key block serves, at least


def flex_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    block: int,
    scale: float,
    labels: Labels | None = None,
    bias: Bias | None = None,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    q, k, v and `labels` stand in the order of the part. On a CPU this runs unfused and forward
    only: there to be tested.
    """
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if q.device.type == "cpu":
        if learning:
            raise Unsupported(
                "FlexAttention has no backward on a CPU; use kernel='gather' or 'auto'"
            )
        # A compiled FlexAttention on a CPU reads permuted tensors wrongly.
        q, k, v = (x.contiguous() for x in (q, k, v))
    lists = _lists(part, block, q.shape[0] * q.shape[1], q.device, labels is not None)
    if lists.copied is not None:
        k, v = (torch.cat((x, x.index_select(2, lists.copied)), dim=2) for x in (k, v))
        labels = labels and Labels(
            labels.queries, torch.cat((labels.keys, labels.keys[:, lists.copied]), dim=1)
        )
    test = _seen(part, lists, q.device)
    score = None if bias is None else _score(bias, part, lists, q.device)
    sizes = (q.shape[2], k.shape[2])
    mask = _block_mask(lists, sizes, block, test, labels)
    key = (part.pattern, type(part.rows), type(part.cols), lists.copied is None, labels is None)
    return _call((*key, block), q.device)(q, k, v, mask, score, scale)


@dataclass(frozen=True, eq=False)
class Lists:
    """The lists of a BlockMask: partial and full blocks, by row and by column.

    `copied` are the keys that stand a second time behind the others, None if there are none.
    """

    tensors: tuple[Tensor, ...]
    copied: Tensor | None


def _block_mask(
    lists: Lists,
    sizes: tuple[int, int],
    block: int,
    test: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    labels: Labels | None,
) -> BlockMask:
    if labels is not None:
        keys = labels.keys.contiguous()
        queries = labels.queries.expand(-1, sizes[0]).contiguous()  # (b, n)

        def chosen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return test(b, h, i, j) & (queries[b, i] == keys[b, j])
    else:
        chosen = test
    return BlockMask(sizes, *lists.tensors, BLOCK_SIZE=(block, block), mask_mod=chosen)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve training as well
def _seen(
    part: Part, lists: Lists, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The pattern as a function of batch row, head and tensor indices."""
    test = part.pattern.bind(part.length, device)
    row, col = _position(part.rows, device), _key_position(part, lists, device)

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return test(row(i), col(j))

    return seen


def _key_position(part: Part, lists: Lists, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From an index of the keys, copies included, to the position that stands there."""
    if lists.copied is None:
        return _position(part.cols, device)
    own = torch.as_tensor(part.cols.positions(), device=device)
    table = torch.cat((own, own[lists.copied]))
    return lambda x: table[x]


def _position(order: Order, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From an index of the tensor to the position that stands there."""
    if type(order) is Order:
        return (lambda x: x + order.start) if order.start else (lambda x: x)
    table = torch.as_tensor(order.positions(), device=device)
    return lambda x: table[x.clamp(max=order.count - 1)]


def _score(bias: Bias, part: Part, lists: Lists, device: torch.device) -> Callable[..., Tensor]:
    row, col = _position(part.rows, device), _key_position(part, lists, device)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias(h, row(i), col(j))

    return score


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _lists(part: Part, block: int, lines: int, device: torch.device, masked: bool) -> Lists:
    """The blocks of a part; `lines` sequences (batch × heads) run side by side."""
    found = part.layout(block)
    u, v, full = found.row_of, found.cols.astype(np.int64), found.full & (not masked)
    v, copied = _spread(found, lines) if device.type == "cuda" else (v, v[:0])
    columns = found.columns + len(copied)
    arrays = _padded(u, v, full, found.rows) + _padded(v, u, full, columns)
    tensors = tuple(torch.as_tensor(array, device=device) for array in arrays)
    if not len(copied):
        return Lists(tensors, None)
    keys = (copied[:, None] * block + np.arange(block)).ravel()
    return Lists(tensors, torch.as_tensor(keys, device=device))


def _spread(found: Layout, lines: int) -> tuple[Ints, Ints]:
    """Columns of the visible blocks, long columns spread over copies; and which are copied."""
    v = found.cols.astype(np.int64)
    if found.keys % found.block:
        return v, v[:0]
    # A column should take no longer than half of what each processor has to do anyway.
    most = max(_LEAST_SHARE, len(v) * lines // (2 * _PROCESSORS))
    copied: list[int] = []
    for column in np.flatnonzero(np.bincount(v, minlength=1) > most):
        own = np.flatnonzero(v == column)  # in the order of their rows
        for at in range(most, len(own), most):
            v[own[at : at + most]] = found.columns + len(copied)
            copied.append(int(column))
    return v, np.asarray(copied, dtype=np.int64)


def _padded(row: Ints, col: Ints, full: Bools, rows: int) -> list[NDArray[np.int32]]:
    """Counts (1, 1, rows) and lists (1, 1, rows, most) of partial, then of full blocks.

    Both lists have one width: the kernel steps through them with the same stride.
    """
    counts = [np.bincount(row[chosen], minlength=rows) for chosen in (~full, full)]
    most = max(1, *(int(count.max(initial=0)) for count in counts))
    made = []
    for count, chosen in zip(counts, (~full, full), strict=True):
        line, value = row[chosen], col[chosen]
        order = np.lexsort((value, line))
        place = np.arange(len(line)) - np.repeat(np.cumsum(count) - count, count)
        lists = np.zeros((rows, most), dtype=np.int32)
        lists[line[order], place] = value[order]
        made += [count.astype(np.int32)[None, None], lists[None, None]]
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

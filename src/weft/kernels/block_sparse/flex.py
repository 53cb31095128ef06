"""FlexAttention from our layouts: the fused block-sparse kernel on a GPU, forward and backward.

The BlockMask is written down from the block calculus, in milliseconds and without evaluating the
pattern. A trap is closed here: a compiled FlexAttention that passes dynamo's recompile limit falls
back silently to an unfused kernel, so every pattern is compiled as a function of its own, whole
(fullgraph), and a limit that is passed raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from weft.errors import Unsupported
from weft.kernels.attend.bias import Bias
from weft.kernels.attend.masking import KeyLabels
from weft.kernels.device_cache import device_cache
from weft.patterns.lower import Part
from weft.patterns.order import Order
from weft.patterns.region import Bools, Ints

BLOCKS = (128,)  # block sizes the kernel is used with


def flex_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    block: int,
    scale: float,
    labels: KeyLabels | None = None,
    bias: Bias | None = None,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    q, k, v and `labels` are in the order of the part. On a CPU this runs unfused and forward
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
    lists = _lists(part, block, q.device, labels is not None)
    score = None if bias is None else _score(bias, part, q.device)
    sizes = (q.shape[2], k.shape[2])
    mask = _block_mask(lists, sizes, block, _seen(part, q.device), labels)
    key = (part.pattern, type(part.rows), type(part.cols), labels is None)
    return _call((*key, block), q.device)(q, k, v, mask, score, scale)


def _block_mask(
    lists: tuple[Tensor, ...],
    sizes: tuple[int, int],
    block: int,
    test: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    labels: KeyLabels | None,
) -> BlockMask:
    mask_mod = test
    if labels is not None:
        keys = labels.keys.contiguous()
        queries = labels.queries.expand(-1, sizes[0]).contiguous()  # (b, n)

        def chosen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return test(b, h, i, j) & (queries[b, i] == keys[b, j])

        mask_mod = chosen
    return BlockMask(sizes, *lists, BLOCK_SIZE=(block, block), mask_mod=mask_mod)


@device_cache(64)
def _seen(part: Part, device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The pattern as a function of batch row, head and tensor indices."""
    test = part.pattern.bind(part.length, device)
    row, col = _position(part.rows, device), _position(part.cols, device)

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return test(row(i), col(j))

    return seen


def _position(order: Order, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From an index of the tensor to the position of its token."""
    if type(order) is Order:
        return (lambda x: x + order.start) if order.start else (lambda x: x)
    table = torch.as_tensor(order.positions(), device=device)
    return lambda x: table[x.clamp(max=order.count - 1)]


def _score(bias: Bias, part: Part, device: torch.device) -> Callable[..., Tensor]:
    row, col = _position(part.rows, device), _position(part.cols, device)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias(h, row(i), col(j))

    return score


@device_cache(64)
def _lists(part: Part, block: int, device: torch.device, masked: bool) -> tuple[Tensor, ...]:
    """The lists of a BlockMask: partial and full blocks, by row and by column."""
    found = part.layout(block)
    u, v, full = found.row_of, found.cols.astype(np.int64), found.full & (not masked)
    arrays = _padded(u, v, full, found.rows) + _padded(v, u, full, found.columns)
    return tuple(torch.as_tensor(array, device=device) for array in arrays)


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
    return out, extra.lse  # pyright: ignore[reportReturnType]  # asked for by AuxRequest


@lru_cache(maxsize=256)
def _call(key: object, device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernel compiled for one pattern; other lengths do not compile it again."""
    if device.type == "cpu":
        return _unfused
    # A copy of the code object has a compile cache, and a recompile limit, of its own.
    own = FunctionType(_run.__code__.replace(), _run.__globals__, "flex_run")
    return torch.compile(own, fullgraph=True)


def _unfused(*args: Any) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return _run(*args)

"""Attention between few landmarks and many tokens by our own Triton kernels, either one asking.

Torch's fused attention splits its backward pass by keys, so few keys leave a GPU idle. Here it is
split over the many, queries or keys. Means of tokens are here as well: they add up
what comes back to the tokens, in memory that their projection reads as it is. `reference.py` is the
same in plain PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.adjacent import empty_like_heads
from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.launch import on_grid, strides, unit_stride
from weft.kernels.planner.fast import HALF, FastKernel, Rule

ROWS = 64  # tokens of one step
WARPS, STAGES = 4, 2
JOINED = 32  # segments that are joined at a time
_PROGRAMS = 264  # two for each multiprocessor of an H200


FUSED = FastKernel("landmarks: attention", dtypes=HALF)
MEANS = FastKernel("landmarks: means", kernel="one backward pass")


def can_fuse(many: Tensor, few: Tensor, v: Tensor, dropout: float = 0.0) -> bool:
    """Whether the kernels take attention between many tokens and few landmarks (b, h, _, d)."""
    d, e, r = many.shape[-1], v.shape[-1], few.shape[2]
    rules = (
        Rule(dropout == 0.0, "has no dropout", dropout),
        Rule(d == e and d in WIDTHS, TAKES_WIDTHS, (d, e)),
        Rule(0 < r <= WIDTHS[-1], "takes up to 128 landmarks", r),
    )
    return FUSED.takes(many, few, v, rules=rules)


def fused_read(q: Tensor, k: Tensor, v: Tensor, there: Tensor | None = None) -> Tensor:
    """Attention of q (b, h, n, d) to the landmarks k, v (b, h, r, d) that are there (b, r)."""
    return _Read.apply(q, k, v, counts_of(there, k))


def fused_means(q: Tensor, k: Tensor, v: Tensor, count: int) -> tuple[Tensor, ...]:
    """q, k, v and v again, and the means (b, _, r, d) of `count` equal segments of q and of k.

    Gradients of all uses are added up here, adjacent in memory, as the projections read them.
    """
    return _Means.apply(q, k, v, count)


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, count: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v)
        ctx.count = count
        means = (x.unflatten(2, (count, -1)).mean(3) for x in (q, k))
        return *(x.view_as(x) for x in (q, k, v, v)), *means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # All are tensors, but for the second v where it is unused.
        *tokens, dlocal, dshort_q, dshort_k = grads
        outs = empty_like_heads(ctx.saved_tensors)
        share = ctx.count / outs[0].shape[2]  # of a token in its mean
        for out, grad, mean in zip(outs, tokens, (dshort_q, dshort_k), strict=False):
            parts, into = (x.unflatten(2, (ctx.count, -1)) for x in (grad, out))
            torch.add(parts, mean[:, :, :, None], alpha=share, out=into)
        if dlocal is None:
            outs[2].copy_(tokens[2])
        else:
            torch.add(tokens[2], dlocal, out=outs[2])
        return *outs, None


def counts_of(there: Tensor | None, few: Tensor) -> Tensor:
    """How many of the landmarks (b, h, r, d) exist in each row: (b,) int32."""
    if there is None:
        return torch.full((len(few),), few.shape[2], dtype=torch.int32, device=few.device)
    return there.sum(1, dtype=torch.int32)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, counts: Tensor) -> Tensor:
        from weft.kernels.nystrom.kernels import forward_kernel

        q = unit_stride(q)
        k, v = k.contiguous(), v.contiguous()
        out, (grid, sizes, settings) = _like(q), _plan(q, k)
        scale = q.shape[-1] ** -0.5 * math.log2(math.e)
        given = (q, k, v, counts, out, *strides(q, out), *sizes, scale)
        on_grid(forward_kernel, grid)(*given, **settings)
        ctx.save_for_backward(q, k, v, counts)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.nystrom.kernels import backward_kernel

        q, k, v, counts = ctx.saved_tensors
        grad = unit_stride(grad)
        dq, (grid, sizes, settings) = _like(q), _plan(q, k)
        room = (*q.shape[:2], grid[1], settings["R"], q.shape[-1])
        sums = q.new_empty(2, *room, dtype=torch.float32)
        scale = q.shape[-1] ** -0.5
        tensors = (q, k, v, counts, grad, dq, *sums, *strides(q, grad, dq))
        scales = (scale * math.log2(math.e), scale)
        on_grid(backward_kernel, grid)(*tensors, *sizes, *scales, **settings)
        dk, dv = _total(sums, k)
        return dq, dk, dv, None


def fused_ask(q: Tensor, k: Tensor, v: Tensor, length: Tensor | None = None) -> Tensor:
    """Attention of landmarks q (b, h, r, d) to the first `length` (b,) tokens k, v (b, h, n, d)."""
    if length is None:
        length = torch.full((len(k),), k.shape[2], device=k.device)
    return _Ask.apply(q, k, v, length.to(torch.int32))


class _Ask(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
        from weft.kernels.nystrom.kernels import ask_kernel, merge_kernel

        k, v = (unit_stride(x) for x in (k, v))
        q, (grid, sizes, settings) = q.contiguous(), _plan(k, q)
        room = (*q.shape[:2], grid[1], settings["R"])
        parts = q.new_empty(*room, q.shape[-1], dtype=torch.float32)
        lse = q.new_empty(room, dtype=torch.float32)
        scale = q.shape[-1] ** -0.5 * math.log2(math.e)
        tensors = (q, k, v, length, parts, lse, *strides(k, v))
        on_grid(ask_kernel, grid)(*tensors, *sizes, scale, **settings)
        out, whole = torch.empty_like(q), lse.new_empty(q.shape[:3])
        on_grid(merge_kernel, (grid[0], q.shape[2]))(parts, lse, out, whole, *_segments(parts, q))
        ctx.save_for_backward(q, k, v, length, out, whole)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.nystrom.kernels import ask_back_kernel

        q, k, v, length, out, lse = ctx.saved_tensors
        grad, (grid, sizes, settings) = grad.contiguous(), _plan(k, q)
        dk, dv = _like(k), _like(v)
        room = (*q.shape[:2], grid[1], settings["R"], q.shape[-1])
        sums = q.new_empty(room, dtype=torch.float32)
        tensors = (q, k, v, length, grad, out, lse, sums, dk, dv, *strides(k, v, dk, dv))
        scale = q.shape[-1] ** -0.5
        scales = (scale * math.log2(math.e), scale)
        on_grid(ask_back_kernel, grid)(*tensors, *sizes, *scales, **settings)
        return _total(sums, q), dk, dv, None


def _plan(many: Tensor, few: Tensor) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """Grid, sizes and settings: a line of the many is cut into as many segments as fill the GPU."""
    (b, h, n, d), r = many.shape, few.shape[2]
    blocks = -(-n // ROWS)
    segment = -(-blocks // min(blocks, max(1, _PROGRAMS // (b * h)))) * ROWS
    room = max(16, 1 << (r - 1).bit_length())
    warps = WARPS if max(room, d) <= 64 else 2 * WARPS
    settings = {"ROWS": ROWS, "R": room, "D": d, "num_warps": warps, "num_stages": STAGES}
    return (b * h, -(-n // segment)), (h, n, r, segment), settings


def _total(parts: Tensor, few: Tensor) -> Tensor:
    """Sums over segments (..., segments, R, d), in the precision of the few: (..., r, d)."""
    from weft.kernels.nystrom.kernels import total_kernel

    *lines, _, _, d = parts.shape
    out = few.new_empty(*lines, few.shape[2], d)
    on_grid(total_kernel, (math.prod(lines), few.shape[2]))(parts, out, *_segments(parts, few))
    return out


def _segments(parts: Tensor, few: Tensor) -> tuple[int, ...]:
    """Sizes of the kernels that join segments (..., segments, R, d)."""
    return parts.shape[-3], few.shape[2], *parts.shape[-2:], JOINED


def _like(q: Tensor) -> Tensor:
    """An empty (b, h, n, d) whose memory is (b, n, h, d): what a projection reads."""
    return q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)

"""Causal attention to chosen blocks of keys by our own Triton kernels, values and gradients.

The pairs of a query and a block are sorted by block once; `kernels.py` says what the
kernels do with the lists. Time and memory grow with the pairs: values of every pair are written
once and read once. `reference.py` is the same in plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.adjacent import empty_like_heads
from weft.kernels.block_sparse.launch import LOG2E
from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.dropout import Dropout
from weft.kernels.launch import on_grid, strides, unit_stride
from weft.kernels.nsa.lists import lists_of
from weft.kernels.planner.fast import HALF, FastKernel, Rule

BLOCKS = (16, 32, 64, 128)
# (rows of a product, warps, stages); rows are queries times heads that share keys. Wide heads or
# long blocks take twice the warps. Rows are found through the list, so that the compiler spends two
# stages on each step ahead: with fewer than five, every product waits for its rows.
FORWARD = (64, 4, 5)
BACKWARD = (64, 4, 5)
JOIN = (32, 4, 2)
SUMMED = (4, 16)  # segments and keys that are summed at a time
MOST = 64  # query heads that share keys, at most


FUSED = FastKernel("attention to chosen blocks", dtypes=HALF, graph=True)


def can_fuse(q: Tensor, k: Tensor, v: Tensor, block: int) -> bool:
    """Whether the kernels take these (b, _, _, d) and blocks of this size."""
    d, shared = q.shape[-1], q.shape[1] // k.shape[1]
    rules = (
        Rule(d in WIDTHS, TAKES_WIDTHS, d),
        Rule(block in BLOCKS, "takes blocks of 16, 32, 64 and 128", block),
        Rule(shared <= MOST, "takes up to 64 query heads per key head", shared),
    )
    return FUSED.takes(q, k, v, rules=rules)


def fused_selected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    *,
    block: int,
    start: int = 0,
    dropout: float = 0.0,
) -> Tensor:
    """q (b, h, n, d) from index `start`, k and v (b, g, m, d), chosen (b, g, n, s) -> (b, h, n, d).

    `chosen` are distinct block numbers; one that is not below ⌈m / block⌉ means no block.
    """
    drop = Dropout.of(dropout, q.device, 1)
    return _Selected.apply(q, k, v, chosen.to(torch.int32).contiguous(), block, start, drop)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chosen: Tensor,
        block: int,
        start: int,
        drop: Dropout | None,
    ) -> Tensor:
        from weft.kernels.nsa import kernels

        q, k, v = (unit_stride(x) for x in (q, k, v))
        plan = _SelectionRun(q, k, chosen, block, start, drop)
        part, part_lse = plan.parts(q.dtype), plan.parts(torch.float32, ())
        plan.segments(kernels.forward_kernel, FORWARD, (q, k, v, part, part_lse), (q, k, v))
        out = empty_like_heads((q,))[0]
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        plan.join(kernels.join_kernel, part, part_lse, out, lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.nsa import kernels

        q, k, v, out, lse = ctx.saved_tensors
        plan, dout = ctx.plan, unit_stride(dout)
        delta = torch.empty_like(lse)
        b, h, n, d = q.shape
        rows, warps, _ = JOIN
        on_grid(kernels.delta_kernel, (-(-n // rows) * b * h,))(
            out, dout, delta, *strides(out, dout), h, n, ROWS=rows, WIDTH=d, num_warps=warps
        )
        part, sums = plan.parts(q.dtype), plan.sums()
        dq, (dk, dv) = empty_like_heads((q,))[0], empty_like_heads((k, v))
        tensors, strided = (q, k, v, dout, lse, delta, part, sums, dk, dv), (q, k, v, dout, dk, dv)
        plan.segments(kernels.backward_kernel, BACKWARD, tensors, strided, d**-0.5)
        plan.join(kernels.join_kernel, part, None, dq, None)
        plan.keys(kernels.keys_kernel, sums, dk, dv)
        return dq, dk, dv, None, None, None, None


class _SelectionRun:
    """The lists, and the launches that forward and backward share."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        chosen: Tensor,
        block: int,
        start: int,
        drop: Dropout | None,
    ) -> None:
        self.b, self.h, self.n, self.d = q.shape
        self.g, self.m = k.shape[1:3]
        self.block, self.start, self.chosen, self.drop = block, start, chosen, drop
        self.count, self.selected = -(-self.m // block), chosen.shape[3]
        step = max(1, max(FORWARD[0], BACKWARD[0]) // _power(self.h // self.g))
        self.lists = lists_of(chosen, self.count, step)

    def parts(self, dtype: torch.dtype, width: tuple[int, ...] | None = None) -> Tensor:
        """An empty row for every query head of every pair."""
        width = (self.d,) if width is None else width
        size = (self.chosen.numel(), self.h // self.g, *width)
        return torch.empty(size, dtype=dtype, device=self.chosen.device)

    def sums(self) -> Tensor:
        """An empty dk and dv for every segment."""
        size = (len(self.lists.owners), 2, self.block, self.d)
        return torch.empty(size, dtype=torch.float32, device=self.chosen.device)

    def segments(
        self,
        kernel: Any,
        setting: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        strided: tuple[Tensor, ...],
        *more: float,
    ) -> None:
        """A kernel that takes a segment in each program."""
        (order, starts, cuts, owners, length), (rows, warps, stages) = self.lists, setting
        group, warps = self.h // self.g, warps * (1 if max(self.d, self.block) <= 64 else 2)
        drops = (cuts, 0, 1.0) if self.drop is None else self.drop.given(0)
        sizes = (self.g, group, self.n, self.m, self.start, len(starts) - 1, self.count, length)
        kernel[(len(owners),)](
            *tensors, order, starts, cuts, owners, *strides(*strided), *sizes,
            self.d**-0.5 * LOG2E, *drops, *more, ROWS=max(rows, _power(group)),
            GROUP=_power(group), WIDTH=self.d, BLOCK=self.block, SELECTED=self.selected,
            DROPS=self.drop is not None, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def join(
        self, kernel: Any, part: Tensor, part_lse: Tensor | None, out: Tensor, lse: Tensor | None
    ) -> None:
        """Parts of pairs into rows of queries: weighted with `part_lse`, else summed."""
        rows, warps, stages = JOIN
        group = self.h // self.g
        rows = max(rows, _power(group))
        weighted = part_lse is not None
        kernel[(-(-self.n // (rows // _power(group))) * self.b * self.g,)](
            part, part_lse if weighted else part, self.chosen, out, lse if weighted else part,
            *strides(out), self.g, group, self.n, self.count,
            ROWS=rows, GROUP=_power(group), WIDTH=self.d, SELECTED=self.selected,
            WEIGHTED=weighted, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def keys(self, kernel: Any, sums: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Sums of segments into rows of keys."""
        segments, rows = SUMMED
        kernel[(len(self.lists.cuts) - 1, self.block // rows)](
            sums, dk, dv, self.lists.cuts, *strides(dk, dv), self.g, self.m, self.count,
            SEGMENTS=segments, ROWS=rows, WIDTH=self.d, BLOCK=self.block,
        )  # fmt: skip


def _power(heads: int) -> int:
    """The least power of two that is at least `heads`."""
    return 1 << (heads - 1).bit_length()

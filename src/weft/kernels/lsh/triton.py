"""Attention in an order that the tokens choose, by Triton kernels that gather inside themselves.

Each round of each head, a *line*, sorts its tokens by bucket. In the sorted order the keys of every
token are one run of places, so nothing is copied into place, padded or masked in memory:

    buckets   token p reads lo(p), ..., p − 1: what stands before it in its own bucket, from the
              beginning of the `lookback`th chunk before its chunk on
    order     token p reads its chunk, `lookback` chunks before and `lookahead` after it, around a
              ring of the chunks that hold real tokens, itself left out

Queries and keys are one projection, k_j = x_j / √(|x_j|² + eps). The rounds of a token are one
softmax: backward, all of them use its final log-sum-exp, so only results by round are added up.
`reformer.py` is the same in plain PyTorch. How a row is rounded here depends on where its block
begins, and so, in the last bits, on tokens that it does not read.

Letters: r rounds, p places of a line (n, but for clusters), w the width that holds a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.adjacent import empty_like_heads
from weft.kernels.block_sparse.launch import LOG2E
from weft.kernels.block_sparse.triton import WIDTHS
from weft.kernels.dropout import Dropout
from weft.kernels.launch import Program, on_grid, start_fitting, strides, unit_stride
from weft.kernels.planner.fast import HALF, FastKernel, Rule

# Programs of the two kernels that attend, by width of heads; their rows are places.
FORWARD = {
    16: Program(64, 32, 4, 2),
    32: Program(64, 32, 4, 3),
    64: Program(64, 128, 4, 2),
    128: Program(64, 32, 4, 2),
}
BACKWARD = {
    16: Program(64, 32, 4, 2),
    32: Program(64, 16, 4, 2),
    64: Program(64, 32, 4, 5),
    128: Program(64, 32, 8, 2),
}
LONGEST_STEP = max(by.step for by in (*FORWARD.values(), *BACKWARD.values()))
ROWS = 32  # rows of one program of the kernels that go through memory once
PLACES = 1024  # places of one program of the kernel that finds the runs


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The order of tokens in every line, and what each reads; lo and hi None: a ring of chunks."""

    token: Tensor  # (b, h, r, p) int32
    length: Tensor  # (b,): tokens from here on are padding
    chunk: int
    lookback: int
    lookahead: int = 0
    lo: Tensor | None = None  # (b, h, r, p) int32: the first place that is read
    hi: Tensor | None = None  # (b, h, r, p) int32: the place after the last that reads this one
    start: Tensor | None = None  # (lines · buckets + 1,): where buckets begin, line after line
    several: bool = False  # a token may occur several times in a line, or not at all


FUSED = FastKernel("attention in sorted buckets", dtypes=HALF)
HASHED = FastKernel("hashing of tokens", dtypes=HALF)
ROUTED = FastKernel("nearest centroids", dtypes=HALF)


def can_fuse(*heads: Tensor, kernel: FastKernel = FUSED, rules: tuple[Rule, ...] = ()) -> bool:
    """Whether a kernel takes these (b, h, n, d), and further rules of the caller hold."""
    x = heads[0]
    own = (
        Rule(x.shape[3] <= WIDTHS[-1], "takes heads up to 128 wide", x.shape[3]),
        Rule(x.numel() > 0, "takes one token or more"),
    )
    return kernel.takes(*heads, rules=(*own, *rules))


def padded_width(d: int) -> int:
    """The width in which the kernels hold heads of d."""
    return next(width for width in WIDTHS if width >= d)


def runs_of_buckets(
    buckets: Tensor, count: int, length: Tensor | None = None, *, chunk: int, lookback: int
) -> Runs:
    """Each bucket by itself, in order of position; buckets (b, h, r, n) below `count`.

    Tokens from `length` (b,) on are padding; None: there is none.
    """
    b, n = buckets.shape[0], buckets.shape[-1]
    chunk, lookback = _within(n, chunk, lookback)
    keys, index = sort_lines(buckets, count)
    lines = buckets.numel() // n
    every = torch.arange(lines * count + 1, device=keys.device, dtype=keys.dtype)
    start = torch.searchsorted(keys, every, out_int32=True)
    token, lo, hi = _places(keys, index, start, buckets, chunk, lookback)
    if length is None:
        length = torch.full((b,), n, device=keys.device)
    return Runs(
        token=token, length=length, chunk=chunk, lookback=lookback, lo=lo, hi=hi, start=start
    )


def runs_of_order(
    buckets: Tensor,
    count: int,
    length: Tensor,
    *,
    chunk: int,
    lookback: int,
    lookahead: int = 0,
    padded: bool = True,
) -> Runs:
    """All tokens by (bucket, position), those from `length` (b,) on last; buckets (b, h, r, n)."""
    n = buckets.shape[-1]
    chunk, lookback, lookahead = _within(n, chunk, lookback, lookahead)
    if padded:
        beyond = torch.arange(n, device=buckets.device) >= length[:, None]
        buckets = buckets.masked_fill(beyond[:, None, None], count)
    keys, index = sort_lines(buckets, count + padded)
    token, _, _ = _places(keys, index, None, buckets, chunk, lookback)
    return Runs(token=token, length=length, chunk=chunk, lookback=lookback, lookahead=lookahead)


def _within(n: int, chunk: int, *neighbours: int) -> tuple[int, ...]:
    """A chunk and counts of its neighbours, limited to what n tokens allow."""
    chunk = min(chunk, n)
    return chunk, *(min(count, -(-n // chunk)) for count in neighbours)


def sort_lines(buckets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """All lines at once by (line, bucket, position): the sorted keys, and the original indices."""
    lines = buckets.numel() // buckets.shape[-1]
    # A sort by radix takes a turn for each byte of its keys.
    narrow = (torch.int16, torch.int32, torch.int64)
    small = next(kind for kind in narrow if lines * count < torch.iinfo(kind).max)
    first = torch.arange(0, lines * count, count, device=buckets.device)
    keys = torch.empty(buckets.shape, device=buckets.device, dtype=small)
    torch.add(buckets, first.view(*buckets.shape[:-1], 1), out=keys)
    return keys.flatten().sort(stable=True)


def _places(
    keys: Tensor, index: Tensor, start: Tensor | None, like: Tensor, chunk: int, lookback: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens by place and, given where buckets start, both ends of the runs (b, h, r, n)."""
    from weft.kernels.lsh.row_kernels import places_kernel

    count = 1 if start is None else 3
    token, *runs = torch.empty(count, *like.shape, device=like.device, dtype=torch.int32)
    lo, hi = runs or (None, None)
    total = like.numel()
    given = [index if x is None else x for x in (start, token, lo, hi)]
    numbers = (like.shape[-1], total, chunk, lookback)
    grid = (-(-total // PLACES),)
    on_grid(places_kernel, grid)(
        keys, index, *given, *numbers, BLOCK=PLACES, BUCKETS=start is not None
    )
    return token, lo, hi


def attend_runs(
    x: Tensor,
    v: Tensor,
    runs: Runs,
    *,
    scale: float,
    eps: float = 0.0,
    dropout: float = 0.0,
    keyed: int = 0,
) -> Tensor:
    """x (b, h, n, d), v (b, g, n, d) -> (b, h, n, d); the rounds of a token are one softmax.

    A token that reads nothing in any round returns its v, and padding returns 0. The first `keyed`
    rows of x are keys already, from a decoding state. `scale` is above 0.
    """
    return _SortedAttention.apply(x, v, runs, scale, eps, Dropout.of(dropout, x.device), keyed)


class _SortedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        v: Tensor,
        runs: Runs,
        scale: float,
        eps: float,
        drop: Dropout | None,
        keyed: int,
    ) -> Tensor:
        from weft.kernels.lsh import row_kernels as kernels

        x, v = (unit_stride(y) for y in (x, v))
        launch = GatherLaunch(x, v, runs, scale, drop)
        norm = launch.norms(eps, keyed)
        part, part_lse = launch.forward(norm)
        out, lse = launch.like_heads(), torch.empty_like(norm)
        tensors = (part, part_lse, v, runs.length, out, lse)
        launch.once(kernels.merge_kernel, tensors, (v, out), launch.sizes)
        ctx.save_for_backward(x, v, out, lse, norm)
        ctx.given = (runs, scale, drop)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.lsh import row_kernels as kernels

        x, v, out, lse, norm = ctx.saved_tensors
        runs, scale, drop = ctx.given
        dout = unit_stride(dout)
        launch, delta = GatherLaunch(x, v, runs, scale, drop), torch.empty_like(lse)
        tensors, sizes = (out, dout, lse, runs.length, delta), (x.shape[1], x.shape[2])
        launch.once(kernels.delta_kernel, tensors, (out, dout), sizes, BY_PLACE=False)
        parts = launch.backward(dout, norm, lse, delta)
        dx, dv = empty_like_heads((x, v))
        tensors = (*parts, dout, lse, runs.length, dx, dv)
        launch.once(kernels.sum_kernel, tensors, (dout, dx, dv), launch.sizes, lines=v)
        return dx, dv, None, None, None, None, None


class GatherLaunch:
    """How the kernels are started for these heads and runs."""

    def __init__(
        self, x: Tensor, v: Tensor, runs: Runs, scale: float, drop: Dropout | None
    ) -> None:
        self.x, self.v, self.runs, self.scale = x, v, runs, scale
        b, heads, n, d = x.shape
        self.width = padded_width(d)
        self.places, rounds = runs.token.shape[3], runs.token.shape[2]
        self.lines = b * heads * rounds
        # Columns of a line: all chunks, and one step beyond, in whole sectors of memory.
        self.extent = -(-(-(-self.places // runs.chunk) * runs.chunk + LONGEST_STEP) // 8) * 8
        self.sizes = (heads, heads // v.shape[1], rounds, n)
        self.drops = (runs.length, 0, 1.0) if drop is None else drop.given(0)
        self.settings = {
            "HEAD": d,
            "WIDTH": self.width,
            "RING": runs.lo is None,
            "BY_PLACE": runs.several,
            "DROPS": drop is not None,
        }

    def norms(self, eps: float, keyed: int = 0) -> Tensor:
        """What makes x a key: (b, h, n) in float32."""
        from weft.kernels.lsh.row_kernels import norm_kernel

        norm = self.x.new_empty(self.x.shape[:3], dtype=torch.float32)
        self.once(norm_kernel, (self.x, norm), (self.x,), (*self.x.shape[1:3], eps, keyed))
        return norm

    def forward(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Values (lines, p, w) and log-sum-exp (lines, p) of every round by itself."""
        from weft.kernels.lsh.kernels import forward_kernel

        runs, part = self.runs, self.parts()
        lse = part.new_empty(part.shape[:2], dtype=torch.float32)
        lo = runs.token if runs.lo is None else runs.lo
        columns = self.columns(norm)
        tensors = (self.x, self.v, *columns, runs.token, lo, runs.length, part, lse)
        scales, tuned = (self.scale * LOG2E,), FORWARD[self.width]
        self.blocks(forward_kernel, tensors, (self.x, self.v), scales, tuned)
        return part, lse

    def backward(
        self, dout: Tensor, norm: Tensor, lse: Tensor, delta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients (lines, p, w) of x and v from every round by itself."""
        from weft.kernels.lsh.kernels import backward_kernel

        runs, dx, dv = self.runs, self.parts(), self.parts()
        lo, hi = (runs.token if y is None else y for y in (runs.lo, runs.hi))
        given, columns = (self.x, self.v, dout), self.columns(norm, (lse, delta))
        tensors = (*given, *columns, norm, lse, delta, runs.token, lo, hi, runs.length, dx, dv)
        scales = (self.scale * LOG2E, self.scale)
        self.blocks(backward_kernel, tensors, given, scales, BACKWARD[self.width])
        return dx, dv

    def columns(self, norm: Tensor, rows: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor]:
        """Marks and values (kinds, lines, extent) of columns; `rows`: their lse and delta."""
        from weft.kernels.lsh.row_kernels import columns_kernel

        runs, back, drops = self.runs, bool(rows), self.settings["DROPS"]
        marks = norm.new_empty((4 if drops else 2, self.lines, self.extent), dtype=torch.int32)
        values = norm.new_empty(3 if back else 1, self.lines, self.extent)
        heads, _, rounds, n = self.sizes
        sizes = (heads, rounds, n, self.places, self.extent, marks.stride(0), runs.chunk)
        given = (runs.token, norm, runs.length, *(rows or (norm, norm)), marks, values)
        switches = {name: self.settings[name] for name in ("RING", "BY_PLACE", "DROPS")}
        grid = (self.lines, -(-self.extent // PLACES))
        on_grid(columns_kernel, grid)(
            *given, *sizes, self.drops[0], BLOCK=PLACES, **switches, BACK=back
        )
        return marks, values

    def parts(self) -> Tensor:
        """An empty tensor for rows of every line, in the kernels' width: (lines, p, w)."""
        return self.x.new_empty(self.lines, self.places, self.width)

    def like_heads(self) -> Tensor:
        """An empty (b, h, n, d) whose memory is (b, n, h, d): what a projection reads."""
        b, h, n, d = self.x.shape
        return self.x.new_empty(b, n, h, d).transpose(1, 2)

    def blocks(self, kernel: Any, tensors: Any, strided: Any, scales: Any, tuned: Program) -> None:
        """Start a kernel on blocks of places of every line."""
        runs = self.runs
        reach = (runs.chunk, runs.lookback, runs.lookahead)
        columns = (self.extent, self.lines * self.extent)
        given = (*tensors, *strides(*strided), *columns, *self.sizes, self.places, *reach, *scales)
        grid = (self.lines * -(-self.places // tuned.rows),)

        def begin(by: Program) -> None:
            loop = {"STEP": by.step, "num_warps": by.warps, "num_stages": by.stages}
            kernel[grid](*given, *self.drops, **self.settings, M=by.rows, **loop)

        kind = (kernel.__name__, *self.settings.items(), self.x.device)
        start_fitting(kind, tuned, begin)

    def once(
        self, kernel: Any, tensors: Any, strided: Any, numbers: Any, lines: Any = None, **more: Any
    ) -> None:
        """Start a kernel that goes once through the rows of heads: those of x unless given."""
        b, heads, rows, _ = (self.x if lines is None else lines).shape
        grid = (b * heads * -(-rows // ROWS),)
        widths = {name: self.settings[name] for name in ("HEAD", "WIDTH")}
        kernel[grid](*tensors, *strides(*strided), *numbers, M=ROWS, **widths, **more)

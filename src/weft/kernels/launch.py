"""Launching Triton kernels, by programs that fit the GPU: ours were tuned on an H200.

A multiprocessor of an H200 gives a program 227 KiB of shared memory, others 163, 99 or 64. Where a
kernel needs more, Triton refuses before anything runs; the next smaller program is tried, and the
one that fits is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from torch import Tensor

from weft.errors import WeftError

LEAST_STEP = 16  # what a product of matrices takes at once


def on_grid(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """`kernel[grid]`, untyped: Triton's stubs know neither unpacked arguments nor num_warps."""
    return kernel[grid]


def strides(*tensors: Tensor) -> list[int]:
    """Of each (b, h, n, d), the strides of its first three axes."""
    return [x.stride(axis) for x in tensors for axis in (0, 1, 2)]


def unit_stride(x: Tensor) -> Tensor:
    """x, copied unless its last axis is contiguous, as the kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Program(NamedTuple):
    """The tile of one program of an attention kernel, and the settings of its loop."""

    rows: int  # queries, or keys, that are its own
    step: int  # keys, or queries, at a time
    warps: int
    stages: int
    unroll: int = 1  # steps between two waits for memory

    def smaller(self) -> Program | None:
        """One with the same rows that needs less memory; None: there is none."""
        if self.unroll > 1:
            return self._replace(unroll=1)
        if self.step > LEAST_STEP:
            return self._replace(step=self.step // 2)
        return self._replace(stages=1) if self.stages > 1 else None


_FITTING: dict[tuple[Hashable, Program], Program] = {}


def start_fitting(kernel: Hashable, wanted: Program, start: Callable[[Program], None]) -> None:
    """Start as wanted, or by the first smaller program that fits; `kernel` names its form."""
    from triton.runtime.errors import OutOfResources

    refused: Exception | None = None
    tried: Program | None = _FITTING.get((kernel, wanted), wanted)
    while tried is not None:
        try:
            start(tried)
        except OutOfResources as problem:
            refused, tried = problem, tried.smaller()
        else:
            _FITTING[kernel, wanted] = tried
            return
    raise WeftError(
        f"the processors of this GPU have too little memory for {kernel}: {refused}; take narrower "
        "heads, or kernel='gather', which runs anywhere"
    ) from refused

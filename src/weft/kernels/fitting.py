"""Programs that fit the GPU at hand: the ones we know were found on one with much shared memory.

A multiprocessor of an H200 lends a program 227 KiB, others 163, 99 or 64. Where a kernel asks for
more than there is, Triton refuses before anything runs; the next smaller program is tried then, and
what fitted is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from weft.errors import WeftError

LEAST_STEP = 16  # what a product of matrices takes at once


class Program(NamedTuple):
    """What one program of an attention kernel takes, and how it goes through its loop."""

    rows: int  # queries, or keys, that are its own
    step: int  # keys, or queries, at a time
    warps: int
    stages: int
    unroll: int = 1  # steps between two waits for memory

    def smaller(self) -> Program | None:
        """One with the same rows that takes less memory; None: there is none."""
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

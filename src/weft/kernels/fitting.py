"""Programs that fit the GPU at hand: settings are found on one with much shared memory.

A multiprocessor of an H200 lends a program 227 KiB, others 163, 99 or 64. Where a kernel asks for
more than there is, Triton refuses before anything runs; the next smaller setting is tried then, and
what fitted is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from weft.errors import WeftError

S = TypeVar("S", bound=Hashable)
_FITTING: dict[Hashable, Any] = {}


def start_fitting(
    kernel: Hashable, setting: S, smaller: Callable[[S], S | None], start: Callable[[S], None]
) -> None:
    """Start by a setting, or by the first smaller one that fits; `kernel` names its form."""
    from triton.runtime.errors import OutOfResources

    refused: Exception | None = None
    tried: S | None = _FITTING.get((kernel, setting), setting)
    while tried is not None:
        try:
            start(tried)
        except OutOfResources as problem:
            refused, tried = problem, smaller(tried)
        else:
            _FITTING[kernel, setting] = tried
            return
    raise WeftError(
        f"the processors of this GPU have too little memory for {kernel}: {refused}; take narrower "
        "heads, or kernel='gather', which runs anywhere"
    ) from refused

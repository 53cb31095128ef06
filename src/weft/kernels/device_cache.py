"""Tensors of layouts and masks on a device, built once and cached.

A recorded CUDA graph reads from the addresses that it was recorded with, so what it reads must live
as long as the graph does, even if the cache drops it: inside `holding`, every result is also
stored by the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
_HOLDERS: list[dict[int, Any]] = []  # of all threads: gradients are computed in others


def device_cache(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function whose last `most` results are cached, for inference and training alike."""

    def around(make: Callable[P, T]) -> Callable[P, T]:
        remembered = lru_cache(maxsize=most)(torch.inference_mode(False)(make))

        @wraps(make)
        def ask(*args: P.args, **kwargs: P.kwargs) -> T:
            answer = remembered(*args, **kwargs)
            for held in _HOLDERS:
                held[id(answer)] = answer
            return answer

        ask.cache_clear = remembered.cache_clear  # type: ignore[attr-defined]  # as lru_cache
        return ask

    return around


@contextmanager
def holding(held: dict[int, Any]) -> Iterator[None]:
    """All results of cached functions are also stored in `held`, by identity."""
    _HOLDERS.append(held)
    try:
        yield
    finally:
        _HOLDERS[:] = [other for other in _HOLDERS if other is not held]

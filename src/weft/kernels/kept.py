"""What layouts and masks put on a device, made once and kept for a while.

A recorded CUDA graph reads from the addresses that it was recorded with, so what it reads must live
as long as the graph does, whatever else is asked for in the meantime: inside `holding`, everything
that is asked for is handed to the recorder as well.
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


def kept(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function whose last `most` answers are kept; they serve inference and training alike."""

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
    """All answers of kept functions are put into `held`, by identity, and so live as long."""
    _HOLDERS.append(held)
    try:
        yield
    finally:
        _HOLDERS[:] = [other for other in _HOLDERS if other is not held]

"""Columns at a time, pieces ahead: arrow and numpy leave Python to other threads as they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each(do: Callable[..., Any], *given: Iterable[Any]) -> None:
    """Call `do` with each item, several at a time; the first error is raised."""
    if cores() == 1:
        for items in zip(*given, strict=True):
            do(*items)
        return
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(do, *given))


def ahead(source: Generator[Item, None, None]) -> Iterator[Item]:
    """The items of a generator; the next one is made while one is used."""
    if cores() == 1:
        yield from source
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(next, source, None)
            while (item := waiting.result()) is not None:
                waiting = pool.submit(next, source, None)
                yield item
        finally:
            pool.submit(source.close).result()

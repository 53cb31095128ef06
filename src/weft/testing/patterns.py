"""Checks of a pattern: block answers that never miss a pair, true traits, one meaning everywhere.

The truth is `sees`, evaluated on every pair. A pattern that differs between heads is checked head
by head. Sizes that it refuses (a table of a fixed length) are passed over; some must remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from weft.errors import WeftError
from weft.patterns import Order, Pattern, layout
from weft.patterns import pattern as parse
from weft.patterns.custom import Predicate
from weft.patterns.derive import mask
from weft.patterns.region import Bools, interval

SIZES = ((1, 1), (2, 2), (33, 33), (30, 40), (7, 64), (90, 90))  # (queries, positions)
BLOCKS = (1, 2, 3, 5, 8, 16, 64)
MOST_HEADS = 64


def check_blocks(
    pattern: Pattern,
    *,
    sizes: Sequence[tuple[int, int]] = SIZES,
    blocks: Sequence[int] = BLOCKS,
    tight: bool = False,
) -> None:
    """Layouts: no visible block is missing, none is called full that is not.

    `tight`: and they hold no others, which is not required of a pattern, but makes it fast.
    """
    for one, n, m in _cases(pattern, sizes):
        for block in blocks:
            compare_layout(one, n, m, block, tight)


def check_regions(pattern: Pattern, *, length: int = 60, samples: int = 300, seed: int = 0) -> None:
    """`covers` for any two intervals, which need not be blocks: sound."""
    draw = np.random.default_rng(seed)
    for one, _, m in _cases(pattern, ((length, length), (7, 7))):
        rows, cols = (np.sort(draw.integers(0, m, (samples, 2)), axis=1) for _ in range(2))
        compare_intervals(one, m, rows, cols)


def check_traits(pattern: Pattern, *, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """What it says of itself is true: causal, relative, needs_length, everything."""
    for one, _, m in _cases(pattern, sizes):
        seen = truth(one, m, m)
        assert not (one.causal and np.triu(seen, 1).any()), f"{one}: causal, and reads ahead"
        assert seen.all() or not one.everything, f"{one}: everything, and reads less"
        lines = (np.diagonal(seen, d) for d in range(1 - m, m))
        assert not one.relative or all(line.all() or not line.any() for line in lines), (
            f"{one}: relative, and pairs of one distance differ"
        )
        if not one.needs_length:
            i, j = np.indices((m, m))
            free = np.broadcast_to(one.sees(i, j), (m, m))
            assert (free == seen).all(), f"{one}: needs_length is False, and the length matters"


def check_every_nth(
    pattern: Pattern,
    *,
    steps: Sequence[int] = (1, 2, 3, 7),
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> None:
    """`every_nth(step)` is None, or the pattern among every step-th position from anywhere on."""
    for one, _, m in _cases(pattern, sizes):
        for step in steps:
            thinned = one.every_nth(step)
            if thinned is None:
                continue
            for r in range(min(step, m)):
                own = truth(one, m, m)[r::step, r::step]
                found = truth(thinned, len(own), len(own))
                assert (found == own).all(), f"{one}: every_nth({step}) is wrong from {r} on"


def check_bind(pattern: Pattern, *, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """numpy, torch and `bind`, which compiled kernels call, answer alike."""
    for one, n, m in _cases(pattern, sizes):
        seen = truth(one, n, m)
        found = mask(one, n, m)[0]
        assert found.dtype == torch.bool, f"{one}: sees gives {found.dtype}, not booleans"
        assert (found.numpy() == seen).all(), f"{one}: numpy and torch see different pairs"
        i, j = torch.arange(m - n, m)[:, None], torch.arange(m)[None]
        bound = one.bind(m, "cpu")(i, j).expand(n, m)
        assert (bound.numpy() == seen).all(), f"{one}: bind and sees see different pairs"


def check_round_trip(pattern: Pattern) -> None:
    """Its text reads back as an equal pattern of the same hash."""
    again = parse(str(pattern))
    assert again == pattern, f"{str(pattern)!r} reads back as {again!r}, not {pattern!r}"
    assert hash(again) == hash(pattern), f"{pattern}: equal patterns have different hashes"


CHECKS: dict[str, Callable[..., None]] = {
    "blocks": check_blocks,
    "regions": check_regions,
    "traits": check_traits,
    "every_nth": check_every_nth,
    "bind": check_bind,
    "round_trip": check_round_trip,
}


def exempt(pattern: Pattern) -> dict[str, str]:
    """The checks that do not apply, and why."""
    if any(isinstance(part, Predicate) for part in _parts(pattern)):
        return {"round_trip": f"{pattern} holds a function, which has no text"}
    return {}


def truth(pattern: Pattern, n: int, m: int) -> Bools:
    """(n, m) booleans: `sees` on all pairs, in numpy; queries are the last n of m positions."""
    i, j = np.arange(m - n, m)[:, None], np.arange(m)[None, :]
    return np.broadcast_to(pattern.sees(i, j, m), (n, m))


def in_blocks(dense: Bools, block: int) -> tuple[Bools, Bools]:
    """(n, m) booleans -> for each block: does some pair see, do all."""
    rows, cols = (np.arange(0, size, block) for size in dense.shape)
    some = np.logical_or.reduceat(np.logical_or.reduceat(dense, rows, axis=0), cols, axis=1)
    every = np.logical_and.reduceat(np.logical_and.reduceat(dense, rows, axis=0), cols, axis=1)
    return some, every


def compare_layout(pattern: Pattern, n: int, m: int, block: int, tight: bool = False) -> None:
    """The layout against the definition: sound always, equal to it where tight."""
    some, every = in_blocks(truth(pattern, n, m), block)
    found_some, found_every = layout(pattern, Order(n, m - n), Order(m), m, block).dense()
    what = f"{pattern}, {n} of {m} positions in blocks of {block}"
    assert not (some & ~found_some).any(), f"{what}: a visible block is missing"
    assert not (found_every & ~every).any(), f"{what}: a block is called full and is not"
    assert not (found_every & ~found_some).any(), f"{what}: a full block is not visible"
    if tight:
        assert (found_some == some).all(), f"{what}: a block is computed in which no pair sees"
        assert (found_every == every).all(), f"{what}: a full block is called partly visible"


def compare_intervals(pattern: Pattern, m: int, rows: Any, cols: Any, tight: bool = False) -> None:
    """`covers` on pairs of intervals, each (k, 2) of first and last positions, against `sees`."""
    rows, cols = np.asarray(rows), np.asarray(cols)
    answer, seen = pattern.covers(interval(*rows.T), interval(*cols.T), m), truth(pattern, m, m)
    some, every = (np.broadcast_to(part, len(rows)) for part in answer)
    for at, ((a, b), (x, y)) in enumerate(zip(rows, cols, strict=True)):
        tile = seen[a : b + 1, x : y + 1]
        what = f"{pattern}, queries {a} to {b}, keys {x} to {y} of {m}"
        assert some[at] or not tile.any(), f"{what}: some pair sees, and covers denies it"
        assert tile.all() or not every[at], f"{what}: not every pair sees, and covers says so"
        if tight:
            assert (some[at], every[at]) == (tile.any(), tile.all()), f"{what}: a loose answer"


def _cases(
    pattern: Pattern, sizes: Sequence[tuple[int, int]]
) -> Iterator[tuple[Pattern, int, int]]:
    """The patterns of its heads, at the sizes that they take."""
    found = 0
    for one in _by_head(pattern):
        for n, m in sizes:
            try:
                truth(one, n, m)
            except WeftError:
                continue
            found += 1
            yield one, n, m
    assert found, f"{pattern} refuses every size of {list(sizes)}; give sizes that it takes"


def _by_head(pattern: Pattern) -> list[Pattern]:
    if not pattern.per_head:
        return [pattern]
    for heads in range(1, MOST_HEADS + 1):
        try:
            return list(dict.fromkeys(pattern.head(a, heads) for a in range(heads)))
        except WeftError:
            continue
    raise AssertionError(f"{pattern} takes no number of heads up to {MOST_HEADS}")


def _parts(pattern: Any) -> Iterator[Any]:
    yield pattern
    inner = [getattr(pattern, name, ()) for name in ("parts", "patterns")]
    for part in (*inner[0], *inner[1], *filter(None, [getattr(pattern, "inner", None)])):
        yield from _parts(part)

"""The block calculus never misses a pair, and layouts equal what evaluation finds."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns.expressions import (
    PRIMITIVES,
    cases,
    few,
    primitives,
    quick,
)
from weft.patterns import (
    Causal,
    Columns,
    Global,
    Order,
    Predicate,
    RandomBlocks,
    Sliding,
    Strided,
    Window2d,
    blocks,
    layout,
)
from weft.patterns.region import Coverage, interval
from weft.testing.patterns import compare_intervals, compare_layout, in_blocks, truth

sizes = st.integers(1, 64)


@given(case=cases(), block=sizes)
@quick
def test_expressions_are_sound(case, block):
    compare_layout(*case, block)


@pytest.mark.parametrize("name", PRIMITIVES)
@given(data=st.data(), block=sizes)
@few
def test_primitives_are_tight(name, data, block):
    pattern, n, m = data.draw(cases(of=lambda m, _: PRIMITIVES[name](m)))
    compare_layout(pattern, n, m, block, tight=True)


@given(data=st.data(), m=st.integers(1, 60))
@quick
def test_any_two_intervals(data, m):
    """Blocks are intervals, but not all intervals are blocks: `covers` answers for each."""
    pattern = data.draw(primitives(m))
    spans = st.tuples(st.integers(0, m - 1), st.integers(0, m - 1)).map(sorted)
    some_rows, some_cols = (data.draw(st.lists(spans, min_size=5, max_size=5)) for _ in range(2))
    compare_intervals(pattern, m, some_rows, some_cols, tight=True)


def test_the_descent_finds_what_the_flat_search_finds():
    """More than 64 blocks a side are searched from large squares down."""
    for pattern in (
        Sliding(30) | Global(first=3, last=2, at=(700,)),
        Causal() & (Sliding(9) | Strided(50)),
        Columns(40, 3) & ~Sliding(100),
        RandomBlocks(2, 16, seed=3),
    ):
        compare_layout(pattern, 1000, 1500, 4)
    compare_layout(Sliding(30), 1000, 1500, 4, tight=True)
    compare_layout(RandomBlocks(2, 16, seed=3), 1000, 1500, 4, tight=True)


def test_a_layout_knows_its_sizes():
    found = layout(Causal() & Sliding(10), Order(21, 9), Order(30), 30, 8)
    some, every = in_blocks(truth(Causal() & Sliding(10), 21, 30), 8)
    assert (found.rows, found.columns) == some.shape == (3, 4)
    assert found.start[-1] == len(found.cols) == len(found.full) == some.sum()
    high, wide = np.array([8, 8, 5])[:, None], np.array([8, 8, 8, 6])[None, :]
    assert found.computed_pairs == (some * high * wide).sum()
    assert found.longest_row == some.sum(1).max()
    assert found.full.sum() == every.sum()
    for u in range(3):
        cols = found.cols[found.start[u] : found.start[u + 1]]
        np.testing.assert_array_equal(cols, np.flatnonzero(some[u]))


def test_many_random_blocks_stay_sound(monkeypatch):
    """Beyond a limit the table of pairs of blocks is not built; answers are looser, not wrong."""
    monkeypatch.setattr(blocks, "PAIR_TABLE_LIMIT", 8)
    for block in (3, 16, 64, 150):
        layout.cache_clear()
        compare_layout(RandomBlocks(3, 5, seed=2), 200, 200, block)
        compare_layout(Causal() & RandomBlocks(3, 5, seed=2, past=True), 90, 200, block)


def test_large_regions_of_a_predicate_are_not_evaluated():
    asked = []

    def near(i, j):
        asked.append(np.broadcast(i, j).size)
        return abs(i - j) < 5

    found = layout(Predicate(near), Order(3000), Order(3000), 3000, 16)
    some, _ = in_blocks(truth(Sliding(5), 3000, 3000), 16)
    np.testing.assert_array_equal(found.dense()[0], some)
    assert max(asked) <= 256**2


# Broken twins: the checks above have to notice each of them.


@dataclass(frozen=True)
class MissesTheEdge(Sliding):
    def covers(self, rows, cols, length=None):
        return Sliding(max(1, self.window - 1)).covers(rows, cols, length)


@dataclass(frozen=True)
class CallsTooMuchFull(Sliding):
    def covers(self, rows, cols, length=None):
        some, _ = Sliding(self.window).covers(rows, cols, length)
        return Coverage(some, Sliding(self.window + 1).covers(rows, cols, length).every)


@dataclass(frozen=True)
class SeesEverywhere(Sliding):
    def covers(self, rows, cols, length=None):
        _, every = Sliding(self.window).covers(rows, cols, length)
        return Coverage(np.ones_like(every), every)


@dataclass(frozen=True)
class ForgetsColumns(Window2d):
    def covers(self, rows, cols, length=None):
        return self.along("y").covers(
            interval(rows.lo // self.width, rows.hi // self.width),
            interval(cols.lo // self.width, cols.hi // self.width),
        )


def caught(pattern):
    """Whether some small size betrays the pattern: an edge must fall on the edge of a block."""
    for n in range(30, 36):
        for block in range(1, 9):
            try:
                compare_layout(pattern, n, 40, block)
            except AssertionError:
                return True
    return False


@pytest.mark.parametrize("twin", [MissesTheEdge(5), CallsTooMuchFull(5), ForgetsColumns(9, 2)])
def test_soundness_has_teeth(twin):
    healthy = Window2d(9, 2) if isinstance(twin, Window2d) else Sliding(5)
    for join in (lambda p: p, lambda p: p & Sliding(30) | Strided(11), lambda p: ~p):
        assert caught(join(twin))
        assert not caught(join(healthy))


def test_tightness_has_teeth():
    compare_layout(SeesEverywhere(5), 50, 60, 8)
    with pytest.raises(AssertionError):
        compare_layout(SeesEverywhere(5), 50, 60, 8, tight=True)

"""Lowered parts read exactly the pattern's pairs, each key once, and compute fewer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns.expressions import cases, few, primitives, quick
from weft.errors import WeftError
from weft.patterns import (
    Axis,
    Causal,
    Columns,
    Dilated,
    Full,
    Global,
    Keys,
    Order,
    Queries,
    RandomBlocks,
    SameBlock,
    Sink,
    Sliding,
    Strided,
    Tiles,
    Window2d,
    select,
)
from weft.patterns import (
    lower as lowering,
)
from weft.patterns.lower import Lowered, Part, branches, lower
from weft.testing.patterns import truth


def times_read(lowered, n, m):
    """(n, m): how often each query reads each key, part by part."""
    read = np.zeros((n, m), dtype=int)
    for part in lowered.parts:
        for r in range(part.fold):
            i, j = (order.positions() for order in (part.rows, part.cols))
            seen = np.broadcast_to(
                part.pattern.sees(i[:, None], j[None, :], part.length), (len(i), len(j))
            )
            i, j = i * part.fold + r, j * part.fold + r
            if part.fold == 1:
                i = i - (m - n)
            there = np.ix_(i < n, j < m)
            read[np.ix_(i[i < n], j[j < m])] += seen[there]
    if lowered.apart is not None:
        apart, rows = lowered.apart, lowered.apart.rows.positions()
        assert apart.fold == 1
        cols = apart.cols.positions()
        read[rows] = apart.pattern.sees(rows[:, None], cols[None, :], apart.length)
    return read


def splits(pattern, n, m):
    """All the ways to split it, cheap or not."""
    made = [lowering._split(pattern, n, m, 16, select_keys) for select_keys in (False, True)]
    return [split for split in made if split is not None]


def check_lowered(lowered, pattern, n, m):
    read = times_read(lowered, n, m)
    assert read.max(initial=0) <= 1, f"{pattern}: a key counts {read.max()} times"
    np.testing.assert_array_equal(read.astype(bool), truth(pattern, n, m))


@given(case=cases(), block=st.integers(1, 64))
@quick
def test_parts_read_the_pattern_once(case, block):
    pattern, n, m = case
    check_lowered(lower(pattern, n, m, block), pattern, n, m)


@given(case=cases())
@quick
def test_every_split_reads_the_pattern_once(case):
    """Also the splits that natural order beats."""
    pattern, n, m = case
    for split in splits(pattern, n, m):
        check_lowered(split, pattern, n, m)


@given(data=st.data(), m=st.integers(1, 150))
@few
def test_unions_of_what_lowering_tells_apart(data, m):
    kinds = [
        st.builds(Strided, st.integers(2, 9)),
        st.builds(Dilated, st.integers(1, 9), st.integers(2, 9)),
        st.integers(2, 20).map(lambda stride: Columns(stride, 1 + stride // 3)),
        st.builds(Sink, st.integers(1, 5)),
        st.integers(0, m - 1).map(lambda p: Global(at=(p,))),
        st.builds(Axis, st.integers(2, 20), st.just("y")),
        st.builds(Sliding, st.integers(1, 20)),
        primitives(m),
    ]
    picked = data.draw(st.lists(st.one_of(kinds), min_size=2, max_size=3))
    pattern = picked[0]
    for other in picked[1:]:
        pattern = pattern | other
    if data.draw(st.booleans()):
        pattern = Causal() & pattern
    for split in [*splits(pattern, m, m), lower(pattern, m, m, 4)]:
        check_lowered(split, pattern, m, m)


@given(case=cases(longest=60))
@few
def test_branches_are_a_union(case):
    pattern, n, m = case
    seen = [truth(branch, n, m) for branch in branches(pattern)]
    np.testing.assert_array_equal(np.logical_or.reduce(seen), truth(pattern, n, m))


def shape(pattern, n=1024):
    """What lowering makes of a pattern at this length: (folds, selected keys, rows apart)."""
    found = lower(pattern, n, n, 32)
    check_lowered(found, pattern, n, n)
    keys = [part.cols.count for part in found.parts if part.fold == 1 and part.cols.count < n]
    return [part.fold for part in found.parts], keys, found.apart and found.apart.rows.count


def test_what_the_mechanisms_lower_to():
    near = Causal() & Sliding(16)
    assert shape(near | Causal() & Strided(16)) == ([1, 16], [], None)
    fixed = Causal() & (SameBlock(16) | Columns(16, 2))
    assert shape(fixed) == ([1, 1], [128], None)
    assert shape(Sliding(16) | Global(first=4)) == ([1, 1], [4], 4)
    assert shape(Dilated(5, 8)) == ([8], [], None)
    assert shape(Axis(16, "y")) == ([16], [], None)
    assert shape(Columns(16, 2)) == ([1], [128], None)
    assert shape(Sliding(16)) == ([1], [], None)


def test_lowering_computes_far_fewer_pairs():
    n = 8192
    for pattern, most in (
        (Causal() & (Sliding(128) | Strided(128)), 0.05),
        (Causal() & (SameBlock(128) | Columns(128, 8)), 0.08),
        (Sliding(128) | Global(first=16), 0.06),
        (Columns(128, 8), 0.07),
        (Axis(64, "y"), 0.02),
    ):
        assert lower(pattern, n, n, 128).computed_pairs(128) < most * n * n
        natural = Part(pattern, Order(n), Order(n), n)
        assert lower(pattern, n, n, 128).computed_pairs(128) <= natural.computed_pairs(128)


def test_overhead_and_continuation_keep_one_part():
    pattern = Causal() & (Sliding(8) | Strided(8))
    assert len(lower(pattern, 512, 512, 16).parts) == 2
    assert len(lower(pattern, 512, 512, 16, overhead=10**9).parts) == 1
    # Residue classes of queries and keys do not line up when a decoder continues.
    assert [part.fold for part in lower(pattern, 100, 512, 16).parts] == [1]


def test_pictures_become_tiles():
    pattern = Window2d(32, 3)
    found = lower(pattern, 512, 512, 128)
    assert isinstance(found.parts[0].rows, Tiles)
    check_lowered(found, pattern, 512, 512)
    check_lowered(lower(pattern | Sink(3), 512, 512, 128), pattern | Sink(3), 512, 512)
    # Another block size, or a picture that tiles do not fill, stays in raster order.
    for n, block in ((512, 64), (480, 128), (544, 128)):
        found = lower(pattern, n, n, block)
        assert type(found.parts[0].rows) is Order
        assert found.computed_pairs(block) <= n * n


def test_tiles_answer_for_their_rectangle():
    tiles = Tiles(64 * 32, 0, 32, 8, 16)
    order = tiles.positions()
    assert sorted(order) == list(range(64 * 32))
    for block in range(16):
        own = order[block * 128 : (block + 1) * 128]
        ys, xs = np.unique(own // 32), np.unique(own % 32)
        assert (len(ys), len(xs)) == (8, 16)
        region = tiles.region(np.array([block]), 128)
        tile = [int(edge[0]) for edge in region.tile[:4]]
        assert tile == [ys[0], ys[-1], xs[0], xs[-1]]
        assert (region.lo[0], region.hi[0]) == (own.min(), own.max())


def test_tiles_have_to_fit():
    with pytest.raises(WeftError, match="tiles of 8×16 have to fill the picture of 7×32"):
        Tiles(7 * 32, 0, 32, 8, 16)
    with pytest.raises(WeftError, match="a block is one tile of 8×16; got block=64"):
        Tiles(256, 0, 16, 8, 16).region(np.array([0]), 64)


def test_selected_positions():
    assert select(np.array([4, 5, 6])) == Order(3, 4)
    chosen = select(np.array([2, 5, 9, 11, 40]))
    np.testing.assert_array_equal(chosen.positions(), [2, 5, 9, 11, 40])
    region = chosen.region(np.array([0, 1, 2]), 2)
    assert (region.lo.tolist(), region.hi.tolist()) == ([2, 9, 40], [5, 11, 40])
    assert chosen == select([2, 5, 9, 11, 40])
    assert chosen != select([2, 5, 9, 12, 40])


def broken(twin):
    """A lowering with one mistake."""
    pattern = Causal() & (Sliding(8) | Strided(8) | Sink(2))
    whole = lowering._split(pattern, 64, 64, 16, select_keys=True)
    first, *rest = whole.parts
    parts = {
        "twice": (first, first, *rest),
        "missing": whole.parts[:-1],
        "overlap": (*whole.parts, Part(Causal() & Sliding(3), Order(64), Order(64), 64)),
        "fold": (first, *(Part(p.pattern, p.rows, p.cols, p.length, 1) for p in rest)),
        "shifted": (Part(first.pattern, Order(64, 1), first.cols, 64), *rest),
    }[twin]
    return Lowered(parts), pattern


@pytest.mark.parametrize("twin", ["twice", "missing", "overlap", "fold", "shifted"])
def test_parts_have_teeth(twin):
    lowered, pattern = broken(twin)
    with pytest.raises(AssertionError):
        check_lowered(lowered, pattern, 64, 64)


def test_rows_apart_have_teeth():
    pattern = Sliding(4) | Queries(at=(5, 9))
    found = lowering._split(pattern, 40, 40, 16, select_keys=True)
    check_lowered(found, pattern, 40, 40)
    for rows in (select([5]), select([5, 10])):
        wrong = Lowered(found.parts, Part(pattern, rows, Order(40), 40))
        with pytest.raises(AssertionError):
            check_lowered(wrong, pattern, 40, 40)


def test_many_branches_stay_natural():
    pattern = Full() & ~Causal()
    for at in range(20):
        pattern = pattern | (Keys(at=(at * 3,)) & RandomBlocks(1, 4, seed=at))
    check_lowered(lower(pattern, 80, 80, 8), pattern, 80, 80)
    assert len(lower(pattern, 80, 80, 8).parts) == 1

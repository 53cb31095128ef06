"""Each primitive against its definition in plain Python, pair by pair, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given

from patterns.expressions import PRIMITIVES, expressions, quick
from weft.errors import Unsupported, WeftError
from weft.patterns import (
    PATTERNS,
    Axis,
    Blocked,
    BlockNeighbours,
    Causal,
    Columns,
    Dilated,
    Full,
    Global,
    Keys,
    OffsetBlock,
    Predicate,
    Queries,
    RandomBlocks,
    Rectangles,
    SameBlock,
    Segments,
    ShiftedWindow,
    Sink,
    Sliding,
    Strided,
    Window2d,
)
from weft.patterns.derive import mask
from weft.testing.patterns import check_bind, truth

N = 41
# Row and column of each position of a picture 6 wide in rectangles of 2 × 3, written out.
PIXELS = [
    (strip * 2 + y, tile * 3 + x)
    for strip in range(4)
    for tile in range(2)
    for y in range(2)
    for x in range(3)
]

# What each pattern means, for one query i and one key j of N.
MEANINGS = [
    (Full(), lambda i, j: True),
    (Causal(), lambda i, j: j <= i),
    (Sliding(1), lambda i, j: i == j),
    (Sliding(6), lambda i, j: j in range(i - 5, i + 6)),
    (Dilated(3, 4), lambda i, j: j in (i - 8, i - 4, i, i + 4, i + 8)),
    (Strided(7), lambda i, j: i % 7 == j % 7),
    (SameBlock(6), lambda i, j: int(i / 6) == int(j / 6)),
    (Blocked(Sliding(2), 6), lambda i, j: abs(int(i / 6) - int(j / 6)) < 2),
    (BlockNeighbours(6, 2, 1), lambda i, j: -1 <= int(i / 6) - int(j / 6) <= 2),
    (Columns(5, 2), lambda i, j: j % 5 in (3, 4)),
    (Keys(2, 3, (9, 20)), lambda i, j: j in (0, 1, 9, 20, 38, 39, 40)),
    (Queries(2, 3, (9, 20)), lambda i, j: i in (0, 1, 9, 20, 38, 39, 40)),
    (Global(1, 1, (7,)), lambda i, j: not {i, j}.isdisjoint((0, 7, 40))),
    (Sink(), lambda i, j: j < 4),
    (Segments((3, 30, 8)), lambda i, j: (i < 3) + (i < 33) == (j < 3) + (j < 33)),
    (Axis(6, "x"), lambda i, j: divmod(i, 6)[0] == divmod(j, 6)[0]),
    (Axis(6, "y"), lambda i, j: divmod(i, 6)[1] == divmod(j, 6)[1]),
    (
        Window2d(6, 2),
        lambda i, j: max(abs(a - b) for a, b in zip(divmod(i, 6), divmod(j, 6), strict=True)) < 2,
    ),
    (
        Window2d(6, 2, 3),
        lambda i, j: all(
            a - b in (-3, 0, 3) for a, b in zip(divmod(i, 6), divmod(j, 6), strict=True)
        ),
    ),
    (OffsetBlock(5, 2), lambda i, j: int((i + 2) / 5) == int((j + 2) / 5)),
    (
        ShiftedWindow(8, 3, 1),
        lambda i, j: (
            [int((a + 1) / 3) for a in divmod(i, 8)] == [int((a + 1) / 3) for a in divmod(j, 8)]
        ),
    ),
    (
        Rectangles(6, 2, 3, above=1, beside=2, below=1),
        lambda i, j: (
            i // 12 * 2 - 1 <= PIXELS[j][0] < i // 12 * 2 + 3
            and i // 6 % 2 * 3 - 2 <= PIXELS[j][1] < i // 6 % 2 * 3 + 5
        ),
    ),
    (Predicate(lambda i, j: (i ^ j) < 9), lambda i, j: (i ^ j) < 9),
]


@pytest.mark.parametrize(("pattern", "meaning"), MEANINGS, ids=[str(p)[:30] for p, _ in MEANINGS])
def test_meaning(pattern, meaning):
    expected = np.array([[meaning(i, j) for j in range(N)] for i in range(N)])
    np.testing.assert_array_equal(truth(pattern, N, N), expected)
    np.testing.assert_array_equal(mask(pattern, N)[0].numpy(), expected)
    np.testing.assert_array_equal(mask(pattern, 9, N)[0].numpy(), expected[-9:])


def test_every_primitive_has_a_meaning_and_a_strategy():
    meant = {type(pattern) for pattern, _ in MEANINGS} | {RandomBlocks}
    assert {PATTERNS[name] for name in PATTERNS if name != "per_head"} | {Predicate} == meant
    assert set(PRIMITIVES) == {*PATTERNS, "predicate"} - {"per_head"}


def test_window_counts_the_token_itself_in_every_pattern():
    n, w = 50, 7
    both, causal = truth(Sliding(w), n, n), truth(Causal() & Sliding(w), n, n)
    assert (both[w:-w].sum(1) == 2 * w - 1).all()
    assert (causal[w:].sum(1) == w).all()
    assert (truth(Dilated(w, 1), n, n) == both).all()
    assert (truth(Window2d(n, w), n, n) == both).all()
    assert truth(Sliding(n), n, n).all()


@given(pattern=expressions(60))
@quick
def test_numpy_and_torch_agree(pattern):
    check_bind(pattern, sizes=[(60, 60)])


@pytest.mark.parametrize("spare", [None, 0, 1])
@pytest.mark.parametrize("length", [8, 64, 100, 1000])
def test_random_blocks_are_distinct_and_spare_what_others_read(spare, length):
    pattern = RandomBlocks(3, 8, seed=5, spare=spare)
    table, blocks = pattern.table(length), -(-length // 8)
    for u, row in enumerate(table):
        drawn = [v for v in row if v >= 0]
        free = set(range(blocks))
        if spare is not None:
            free -= {0, blocks - 1, *range(u - spare, u + spare + 1)}
        assert len(set(drawn)) == len(drawn) == min(3, len(free))
        assert set(drawn) <= free
    seen = truth(pattern, length, length)
    for i in range(length):
        keys = {int(j) // 8 for j in np.flatnonzero(seen[i])}
        assert keys == {int(v) for v in table[i // 8] if v >= 0}


def test_random_blocks_depend_on_seed_and_count_of_blocks_alone():
    draw = RandomBlocks(3, 8, seed=5).table(800)
    assert (RandomBlocks(3, 8, seed=5).table(793) == draw).all()
    assert (RandomBlocks(3, 8, seed=6).table(800) != draw).any()
    assert (RandomBlocks(3, 8, seed=5).table(808)[:100] != draw).any()
    # Drawn from everywhere, not from the front alone.
    assert draw.max() > 90


def test_past_blocks_do_not_know_the_length():
    pattern = RandomBlocks(2, 4, seed=1, past=True)
    long = truth(pattern, 200, 200)
    assert not (long & ~truth(Causal(), 200, 200)).any()
    for length in (1, 30, 111):
        np.testing.assert_array_equal(truth(pattern, length, length), long[:length, :length])
    i, j = np.arange(50, 60)[:, None], np.arange(200)[None, :]
    np.testing.assert_array_equal(pattern.sees(i, j), long[50:60])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sliding(0), "window is a whole number of at least 1; got window=0"),
        (lambda: Sliding(True), "sliding.window is a whole number; got True"),
        (lambda: Sliding(2.5), "sliding.window is a whole number; got 2.5"),
        (lambda: Dilated(3, 0), "dilation is a whole number of at least 1; got dilation=0"),
        (lambda: Strided(-4), "stride is a whole number of at least 1; got stride=-4"),
        (lambda: Blocked(Sliding(2), 0), "block is a whole number of at least 1; got block=0"),
        (lambda: SameBlock(0), "block is a whole number of at least 1; got block=0"),
        (lambda: BlockNeighbours(4, -1), "before is a whole number of at least 0; got before=-1"),
        (lambda: Columns(4, 5), "columns of width=5 do not fit a stride of 4; width is at most"),
        (lambda: Keys(), "keys needs first, last or at: which tokens are meant?"),
        (lambda: Global(first=-1), "first is a whole number of at least 0; got first=-1"),
        (lambda: Queries(at=(3, -2)), "is a whole number of at least 0; got at[-2]=-2"),
        (lambda: Sink(0), "sink needs first, last or at"),
        (lambda: RandomBlocks(0), "count is a whole number of at least 1; got count=0"),
        (lambda: Segments(()), "segments needs the length of one document or more; got none"),
        (lambda: Segments((3, 0)), "lengths is a whole number of at least 1; got lengths=0"),
        (lambda: Axis(4, "z"), "axis.axis is one of 'x', 'y'; got 'z'"),
        (lambda: Window2d(0, 3), "width is a whole number of at least 1; got width=0"),
        (lambda: ShiftedWindow(8, 3, 3), "shift=3 is not under size=3"),
        (lambda: OffsetBlock(4, -1), "shift is a whole number of at least 0; got shift=-1"),
        (
            lambda: mask(Segments((3, 4)), 9),
            "segments of 7 tokens in all do not fill a row of 9; give the padding",
        ),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "way_out"),
    [
        (Keys(last=2), "counts from the end, so it needs the final length"),
        (RandomBlocks(2), "past=true draws from earlier blocks and can"),
    ],
)
def test_what_needs_the_length_says_so(pattern, way_out):
    assert pattern.needs_length
    with pytest.raises(Unsupported, match=way_out):
        pattern.sees(torch.tensor([3]), torch.tensor([1]))

"""Random patterns for hypothesis."""

from hypothesis import settings
from hypothesis import strategies as st

from weft.patterns import (
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

# In CI hypothesis takes its profile of that name by itself: the same examples at every run.
quick = settings(max_examples=60, deadline=None)
few = settings(max_examples=30, deadline=None)

small = st.integers(1, 12)
medium = st.integers(1, 70)
counts = st.integers(0, 9)
PREDICATES = (
    Predicate(lambda i, j: (i ^ j) < 16, "xor"),
    Predicate(lambda i, j: (i * j) % 3 == 0, "product"),
    Predicate(lambda i, j: j < 0, "nothing"),
    Predicate(lambda i, j: (i - j) * (i - j) < 50, "circle"),
)


def _chosen(kind):
    def build(m):
        at = st.lists(st.integers(0, m + 3), max_size=4).map(tuple)
        some = st.tuples(counts, counts, at).filter(any)
        return some.map(lambda s: kind(*s))

    return build


def _segments(m):
    lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)
    return lengths.map(lambda given: Segments((*given, max(1, m - sum(given)))))


def _random_blocks(m):
    spare = st.one_of(st.none(), st.integers(0, 2))
    args = (st.integers(1, 4), st.integers(1, 40), st.integers(0, 9), spare, st.booleans())
    return st.builds(RandomBlocks, *args)


def _shifted(m):
    both = st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(0, 8))
    return both.map(lambda s: ShiftedWindow(s[0], s[1], s[2] % s[1]))


def _rectangles(m):
    sizes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))
    margins = st.tuples(counts, counts, counts)
    return st.builds(lambda s, margin: Rectangles(s[0] * s[2], s[1], s[2], *margin), sizes, margins)


def _columns(m):
    return st.tuples(medium, medium).map(lambda s: Columns(max(s), min(s)))


# Every primitive that ships: a strategy for patterns over m positions.
PRIMITIVES = {
    "full": lambda m: st.just(Full()),
    "causal": lambda m: st.just(Causal()),
    "sliding": lambda m: st.builds(Sliding, medium),
    "dilated": lambda m: st.builds(Dilated, small, small),
    "strided": lambda m: st.builds(Strided, small),
    "same_block": lambda m: st.builds(SameBlock, medium),
    "blocked": lambda m: st.builds(
        Blocked,
        st.one_of(st.builds(Sliding, small), st.builds(Window2d, small, small), st.just(Causal())),
        medium,
    ),
    "block_neighbours": lambda m: st.builds(BlockNeighbours, medium, counts, counts),
    "columns": _columns,
    "keys": _chosen(Keys),
    "queries": _chosen(Queries),
    "global": _chosen(Global),
    "sink": lambda m: st.builds(Sink, small),
    "random_blocks": _random_blocks,
    "segments": _segments,
    "axis": lambda m: st.builds(Axis, medium, st.sampled_from("xy")),
    "window2d": lambda m: st.builds(Window2d, medium, small, small),
    "shifted_window": _shifted,
    "offset_block": lambda m: st.builds(OffsetBlock, medium, counts),
    "rectangles": _rectangles,
    "predicate": lambda m: st.sampled_from(PREDICATES),
}


def primitives(m, without=()):
    """Any primitive over m positions."""
    return st.one_of([make(m) for name, make in PRIMITIVES.items() if name not in without])


def expressions(m, without=(), leaves=4):
    """Primitives joined by |, & and ~."""

    def join(inner):
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] | p[1]),
            pairs.map(lambda p: p[0] & p[1]),
            inner.map(lambda p: ~p),
        )

    return st.recursive(primitives(m, without), join, max_leaves=leaves)


@st.composite
def cases(draw, of=expressions, longest=200, without=()):
    """(pattern, n, m): n queries, the last of m positions."""
    m = draw(st.integers(1, longest))
    n = draw(st.one_of(st.just(m), st.integers(1, m)))
    return draw(of(m, without)), n, m

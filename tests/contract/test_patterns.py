"""The checks of patterns over every one that ships: what a pattern of one's own has to pass."""

import pytest

from weft.patterns import PATTERNS, pattern
from weft.testing import checks_for

# One of each, and per_head; random ones are checked in tests/patterns.
EACH = [
    "full",
    "causal",
    "sliding(5)",
    "dilated(3, 4)",
    "strided(6)",
    "same_block(7)",
    "blocked(sliding(2), 5)",
    "block_neighbours(6, 1, 1)",
    "columns(8, 2)",
    "keys(first=2, last=1)",
    "queries(first=2)",
    "global(first=3, at=[20])",
    "sink(2)",
    "random_blocks(2, 8)",
    "segments([10, 20, 3])",
    "axis(6, 'x')",
    "window2d(6, 2)",
    "shifted_window(8, 4, 2)",
    "offset_block(4, 3)",
    "rectangles(6, 2, 3)",
    "per_head(causal & sliding(3), ~strided(4) | sink)",
]


def test_all_are_here():
    assert {type(pattern(spec)) for spec in EACH} >= {PATTERNS[name] for name in PATTERNS}


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(run, id=f"{spec}-{name}")
        for spec in EACH
        for name, run in checks_for(pattern(spec))
    ],
)
def test_contract(check):
    check()

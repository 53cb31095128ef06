"""Costs in closed form against counting, and at lengths that no mask could have."""

import resource

import numpy as np
import pytest

from weft.errors import WeftError
from weft.patterns import Causal, Columns, Full, Global, Sink, Sliding, Strided, pattern
from weft.patterns.closed_forms import computed_in_closed_form, visible_in_closed_form
from weft.patterns.derive import cost, keeps, kept, mask, visible_pairs
from weft.patterns.distances import rule_of
from weft.patterns.layout import TooManyBlocks, layout
from weft.patterns.order import Order

OF_DISTANCES = [
    "full",
    "causal",
    "~causal",
    "sliding(3)",
    "sliding(40)",
    "~sliding(2)",
    "dilated(4, 3)",
    "strided(5)",
    "causal & sliding(7)",
    "causal & (sliding(4) | strided(6))",
    "~(strided(4) & dilated(5, 2)) & causal",
    "dilated(100, 7) | strided(4)",
]
OF_CHOSEN_TOKENS = [
    "keys(first=3)",
    "queries(at=[2, 3, 40])",
    "sliding(3) | global(first=2, at=[17])",
    "causal & (sliding(5) | sink(4))",
    "~(keys(first=6) | strided(5)) & causal",
    "dilated(9, 4) & ~global(at=[0, 30, 31])",
    "sliding(4) | keys(last=2)",
]


@pytest.mark.parametrize("text", OF_DISTANCES + OF_CHOSEN_TOKENS)
@pytest.mark.parametrize("n", [1, 2, 5, 33, 129])
def test_closed_forms_count_as_the_mask_does(text, n):
    p = pattern(text)
    assert visible_in_closed_form(p, n) == int(mask(p, n)[0].sum())
    for block in (4, 16, 128):
        listed = layout(p, Order(n), Order(n), n, block).computed_pairs
        assert computed_in_closed_form(p, (0, n), (0, n), n, block) == listed
        rows, cols = (n // 3, n - n // 3), (n // 4, n // 2)  # (first, count)
        orders = (Order(count, first) for first, count in (rows, cols))
        listed = layout(p, *orders, n, block).computed_pairs
        assert computed_in_closed_form(p, rows, cols, n, block) == listed
    if p.causal or not p.needs_length:
        assert kept(p, n) == int(keeps(p, np.arange(n), n).sum())


def test_other_patterns_have_none():
    p = Causal() & (Sliding(3) | Columns(5))
    assert rule_of(p) is rule_of(Causal() & Sink(2)) is None
    assert visible_in_closed_form(p, 20) is None
    assert computed_in_closed_form(p, (0, 20), (0, 20), 20, 4) is None
    # The columns, and the window but for the next query's own; the last key is in both.
    assert kept(p, 3_000_000) == 600_000 + 2 - 1


def test_chosen_tokens_that_are_too_many_are_not_cut_out():
    assert visible_in_closed_form(Global(at=tuple(range(0, 200, 2))), 300) is None
    assert visible_pairs(Global(at=tuple(range(0, 200, 2))), 300) == 300**2 - 200**2


def test_what_later_queries_read_is_kept():
    """A chosen query that is still to come reads its own keys, and they are not the newest."""
    p = pattern("causal & queries(at=[12]) & ~sliding(5)")
    assert kept(p, 10) == int(keeps(p, np.arange(10), 10).sum()) >= 8
    assert kept(p, 20) == 0


def test_periods_that_are_too_long_are_not_unrolled():
    assert rule_of(Strided(10**9 + 7) | Strided(998_244_353)) is None


def test_a_billion_tokens_need_no_memory():
    n = 10**9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert visible_pairs(Causal(), n) == n * (n + 1) // 2
    assert visible_pairs(Causal() & Sliding(512), n) == n * 512 - 512 * 511 // 2
    short = n // 100
    assert cost(Full(), short).computed == short * short
    assert 512 * short < cost(Causal() & Sliding(512), short).computed < 3 * 128 * 4 * short
    assert kept(Causal() & Sliding(512), n) == 511
    some = Sliding(512) | Global(first=64)
    # Without the chosen tokens a window of the others; with them 64 whole rows and columns.
    window = (n - 64) * 1023 - 512 * 511
    assert visible_pairs(some, n) == window + n * n - (n - 64) ** 2
    assert cost(some, n).computed < 12 * 128 * n
    assert kept(Causal() & some, n) == 64 + 511
    with pytest.raises(TooManyBlocks, match="is a list of about 85,937,470 blocks of 128"):
        layout(some, Order(n), Order(n), n, 128)
    far = 4 * 10**12  # pairs beyond 63 bits
    assert visible_pairs(Causal(), far) == far * (far + 1) // 2
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 512 * 1024, f"{grown / 1024:.0f} MiB"


def test_a_layout_that_would_fill_memory_is_refused():
    with pytest.raises(TooManyBlocks, match="give a shorter length or larger blocks"):
        layout(Causal(), Order(10**8), Order(10**8), 10**8, 128)
    assert issubclass(TooManyBlocks, WeftError)

"""Costs in closed form against counting, and at lengths that no mask could have."""

import resource

import numpy as np
import pytest

from weft.errors import WeftError
from weft.patterns import Causal, Full, Sink, Sliding, Strided, pattern
from weft.patterns.derive import cost, keeps, kept, mask, visible_pairs
from weft.patterns.distances import computed_in_closed_form, rule_of, visible_in_closed_form
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


@pytest.mark.parametrize("text", OF_DISTANCES)
@pytest.mark.parametrize("n", [1, 2, 5, 33, 129])
def test_closed_forms_count_as_the_mask_does(text, n):
    p = pattern(text)
    assert visible_in_closed_form(p, n) == int(mask(p, n)[0].sum())
    for block in (4, 16, 128):
        listed = layout(p, Order(n), Order(n), n, block).computed_pairs
        assert computed_in_closed_form(p, n, block) == listed
    if p.causal:
        assert kept(p, n) == int(keeps(p, np.arange(n), n).sum())


def test_other_patterns_have_none():
    p = Causal() & (Sliding(3) | Sink(2))
    assert rule_of(p) is None
    assert visible_in_closed_form(p, 20) is None
    assert computed_in_closed_form(p, 20, 4) is None
    assert kept(p, 3_000_000) == 2 + 2  # the sink, and the window but for the next query's own


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
    far = 4 * 10**12  # pairs beyond 63 bits
    assert visible_pairs(Causal(), far) == far * (far + 1) // 2
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 512 * 1024, f"{grown / 1024:.0f} MiB"


def test_a_layout_that_would_fill_memory_is_refused():
    with pytest.raises(TooManyBlocks, match="give a shorter length or larger blocks"):
        layout(Causal(), Order(10**8), Order(10**8), 10**8, 128)
    assert issubclass(TooManyBlocks, WeftError)

"""Cost, decoding cache and receptive field against counting by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patterns.expressions import cases, few, quick
from weft.errors import WeftError
from weft.mixers import MIXERS, Frame
from weft.patterns import (
    BlockNeighbours,
    Causal,
    Columns,
    Dilated,
    Full,
    PerHead,
    Predicate,
    RandomBlocks,
    SameBlock,
    Sink,
    Sliding,
    Strided,
)
from weft.patterns.derive import cost, keeps, mask, receptive_field, visible_pairs
from weft.testing.patterns import truth


@given(case=cases(longest=150), block=st.integers(1, 64))
@few
def test_pairs_are_counted(case, block):
    pattern, _, m = case
    pairs = int(truth(pattern, m, m).sum())
    assert visible_pairs(pattern, m, block) == pairs
    found = cost(pattern, m, heads=2, head_dim=8, block=block, itemsize=4)
    assert found.pairs == pairs
    assert pairs <= found.computed <= m * m
    assert found.density == pairs / m**2
    assert found.flops == 2 * 4 * 8 * found.computed
    assert found.bytes == 2 * 4 * 8 * 4 * m


def test_cost_of_large_patterns_is_known_in_closed_form():
    n, w = 20_000, 129
    window = n * w - w * (w - 1) // 2
    assert cost(Causal() & Sliding(w), n).pairs == window
    assert cost(Causal(), n).pairs == n * (n + 1) // 2
    per_head = cost(PerHead(Causal() & Sliding(w), Causal()), n, heads=4)
    assert per_head.pairs == (window + n * (n + 1) // 2) // 2
    assert cost(Causal() & Sliding(w), n).computed < 3 * 128 * n


def test_computed_counts_whole_blocks():
    # 8 blocks of 128: each reads itself and the one before.
    assert cost(Causal() & Sliding(128), 1024).computed == 15 * 128**2
    assert cost(Full(), 300).computed == 300 * 300


def read_later(pattern, now, horizon):
    """(now,) booleans: which keys a query at now .. horizon − 1 reads, by asking them all."""
    i, j = np.arange(now, horizon)[:, None], np.arange(now)[None, :]
    return np.broadcast_to(pattern.sees(i, j), (horizon - now, now)).any(0)


@given(case=cases(longest=60))
@quick
def test_no_key_is_dropped_that_a_later_query_reads(case):
    pattern, _, m = case
    if pattern.needs_length:
        return
    for now in sorted({1, m // 2, m - 1} & set(range(1, m))):
        kept = keeps(pattern, np.arange(now), now)
        assert not (read_later(pattern, now, m) & ~kept).any()


CAUSAL = [
    Causal(),
    Causal() & Sliding(1),
    Causal() & Sliding(12),
    Causal() & (Sliding(9) | Sink(3)),
    Causal() & SameBlock(7),
    Causal() & BlockNeighbours(5, 2, 3),
    Causal() & (Sliding(8) | Strided(8)),
    Causal() & Strided(6),
    (Causal() & SameBlock(8)) | (Causal() & Columns(8, 3)),
    Causal() & Dilated(4, 3),
    Causal() & (Dilated(4, 3) | Sink(2)),
]


@pytest.mark.parametrize("pattern", CAUSAL, ids=str)
def test_shipped_patterns_keep_exactly_what_is_read_later(pattern):
    for now in range(0, 60):
        kept = keeps(pattern, np.arange(now), now)
        np.testing.assert_array_equal(kept, read_later(pattern, now, now + 80))


def test_a_kept_key_is_asked_for_by_its_position():
    """A cache that dropped keys before asks for those it still has."""
    pattern = Causal() & (Sliding(10) | Sink(2))
    kept = keeps(pattern, np.array([0, 1, 30, 31, 39]), 40)
    assert kept.tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("name", [name for name in MIXERS if hasattr(MIXERS[name], "pattern")])
def test_every_fixed_pattern_mechanism_keeps_what_it_must(name):
    streaming = [config for config in MIXERS[name].variants() if config.traits.causal]
    assert streaming or not MIXERS[name]().traits.causal
    for config in streaming:
        mixer = config.build(Frame(dim=8, heads=2, causal=True))
        for now in (1, 8, 29, 40):
            kept = mixer.needed(np.arange(now), now)
            heads = [mixer.pattern.head(a, 2) for a in range(2)]
            later = np.logical_or.reduce([read_later(head, now, now + 40) for head in heads])
            assert not (later & ~kept).any()
            exact = "random_blocks" not in str(mixer.pattern)
            assert (kept == later).all() or not exact


def test_keeps_has_teeth():
    class Forgets(Sliding):
        def covers(self, rows, cols, length=None):
            return Sliding(self.window - 1).covers(rows, cols, length)

    pattern = Causal() & Forgets(6)
    assert (read_later(pattern, 20, 40) & ~keeps(pattern, np.arange(20), 20)).any()


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_receptive_field(layers):
    for pattern in (Causal() & Sliding(4), Strided(5) | Sliding(2), RandomBlocks(1, 4, 3)):
        step = truth(pattern, 40, 40)
        paths = np.linalg.matrix_power(step.astype(object).astype(int), layers) > 0
        np.testing.assert_array_equal(receptive_field(pattern, 40, layers).numpy(), paths)
    reach = receptive_field(Causal() & Sliding(4), 40, layers)
    assert reach[39].sum() == min(40, 3 * layers + 1)


def test_masks_hold_one_row_per_head():
    pattern = PerHead(Causal(), Sliding(2), Full())
    found = mask(pattern, 3, 7, heads=6)
    assert found.shape == (6, 3, 7)
    assert found.dtype == torch.bool
    for a in range(6):
        part = pattern.patterns[a // 2]
        np.testing.assert_array_equal(found[a].numpy(), truth(part, 3, 7))
    # A predicate of j alone is as good as any.
    assert mask(Predicate(lambda i, j: j < 2), 4)[0].sum() == 8


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: cost(Full(), 0), "n is a whole number of at least 1; got n=0"),
        (lambda: cost(Full(), 4, heads=0), "heads is a whole number of at least 1; got heads=0"),
        (lambda: receptive_field(Full(), 4, 0), "layers is a whole number of at least 1"),
        (lambda: receptive_field(Full(), 9000, 2), "n is at most 8192; got n=9000"),
        (lambda: cost(PerHead(Full(), Causal()), 8, heads=3), "3 heads is not a multiple of 2"),
    ],
)
def test_bad_questions(act, message):
    with pytest.raises(WeftError, match=message):
        act()

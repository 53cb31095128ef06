"""Made-up promoters: both classes alike but for order and distance; the best score is right."""

import numpy as np
import pytest

from weft.dna import grammar
from weft.dna.grammar import CODES, GAPS, JITTER, MOTIFS, OFF, ORDERS, ROOM, SIZES


def drawn(label, count=60, length=400, groups=2, noise=0.0, seed=0):
    rng = np.random.Generator(np.random.PCG64([seed, label]))
    return [grammar.draw_sequence(label, length, groups, noise, rng) for _ in range(count)]


def places(found, motif):
    windows = np.lib.stride_tricks.sliding_window_view(found, SIZES[motif])
    return np.flatnonzero((windows == CODES[motif]).all(1))


def is_right(found):
    """Whether the four motifs stand in order at their distances somewhere, by trying all."""
    where = [places(found, motif) for motif in range(4)]

    def goes_on(place, motif):
        if motif == 3:
            return True
        gaps = range(GAPS[motif] - JITTER, GAPS[motif] + JITTER + 1)
        ahead = {place + SIZES[motif] + gap for gap in gaps}
        return any(goes_on(next_, motif + 1) for next_ in where[motif + 1] if next_ in ahead)

    return any(goes_on(start, 0) for start in where[0])


def test_the_rule_and_nothing_else_tells_the_classes():
    classes = [drawn(label) for label in (0, 1)]
    assert [np.mean([is_right(each) for each in found]) for found in classes] == [0.0, 1.0]
    counts = [[[len(places(each, m)) for m in range(4)] for each in found] for found in classes]
    for found in counts:
        assert np.min(found) >= 2, "each of two groups has each motif"
    assert np.abs(np.mean(counts[0], 0) - np.mean(counts[1], 0)).max() < 0.1


def test_the_likelihood_is_that_of_trying_every_way():
    noise, rng = 0.2, np.random.default_rng(0)
    found = rng.integers(4, size=ROOM + 2, dtype=np.uint8)

    def ratio(start, motif):
        own = found[start : start + SIZES[motif]]
        same, other = 1 - noise + noise / 4, noise / 4
        return np.prod(np.where(own == CODES[motif], same, other) * 4)

    def group(order, gaps):
        jitters = [(a, b, c) for a in range(-2, 3) for b in range(-2, 3) for c in range(-2, 3)]
        total = 0.0
        for start in range(3):
            for jitter in jitters:
                place, each = start, 1.0
                for slot, motif in enumerate(order):
                    each *= ratio(place, motif)
                    place += SIZES[motif] + (gaps[slot] + jitter[slot] if slot < 3 else 0)
                total += each
        return total / (3 * len(jitters))

    assert JITTER == 2
    right = group((0, 1, 2, 3), GAPS)
    moved = []
    for place in range(3):
        for off in OFF[::5]:
            gaps = [gap + off * (slot == place) for slot, gap in enumerate(GAPS)]
            own = [grammar._motif(found, code, noise) for code in CODES]
            moved.append((group((0, 1, 2, 3), gaps), grammar._group(own, (0, 1, 2, 3), gaps, 3)))
    assert all(a == pytest.approx(b, rel=1e-9) for a, b in moved)
    own = [grammar._motif(found, code, noise) for code in CODES]
    for order in ORDERS[::7]:
        expected = group(order, GAPS)
        assert grammar._group(own, order, GAPS, 3) == pytest.approx(expected, rel=1e-9)
    assert grammar._likelihoods(found, noise)[0] == pytest.approx(right, rel=1e-9)


def test_the_best_accuracy_falls_with_noise():
    scores = [grammar.best_accuracy(200, 1, noise, draws=24) for noise in (0.0, 0.5)]
    assert scores[0] == 1.0
    assert 0.5 < scores[1] < 0.95
    assert len(MOTIFS) == len(CODES) == 4

"""Made-up promoters: the same motifs in every sequence; only their order and distances tell.

A sequence of random bases holds `groups` groups of four motifs, one in each equal part of it:

    CAAT box  GGCCAATCT   35   TATA box  TATAAAAG   25   Inr  TCAGTTCT   22   DPE  AGACGTG

Numbers are bases from the end of a motif to the start of the next, each up to `JITTER` more or
less. A group is *right* if its motifs stand so. A wrong group has either its motifs in another
order, or one of the three distances changed by 10 to 16 bases. A sequence is a promoter if one of
its groups is right. So both classes hold the same motifs equally often, at the same range of
places. Each base of a motif is replaced by a random one with probability `noise`.

The best possible accuracy is that of the true probability of being a promoter, which follows from
what is drawn: with L_m(i) the probability of the bases at i under motif m over that under random
bases, a group's likelihood is Σ over its ways to stand of p(way) Π_m L_m(place of m), and

    P(sequence | promoter) / P(sequence | not) = mean over parts of right(part) / wrong(part)

In the spirit of the core promoter elements as they are reviewed in Smale and Kadonaga 2003,
https://doi.org/10.1146/annurev.biochem.72.121801.161520, though no organism has this grammar.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from weft.dna.bases import bases

VERSION = 1
MOTIFS = ("GGCCAATCT", "TATAAAAG", "TCAGTTCT", "AGACGTG")
NAMES = ("CAAT", "TATA", "Inr", "DPE")
GAPS = (35, 25, 22)  # bases between the end of a motif and the start of the next
JITTER = 2
OFF = tuple(x for size in range(10, 17) for x in (-size, size))  # changes of a wrong distance
ORDERS = tuple(permutations(range(4)))[1:]  # all but the right one
CODES = tuple(bases(motif, motif) for motif in MOTIFS)
SIZES = tuple(map(len, MOTIFS))
ROOM = sum(SIZES) + sum(GAPS) + 3 * JITTER + max(OFF)  # bases that any group fits into


class Draw:
    """One group: which motif stands where, from its start."""

    def __init__(self, order: tuple[int, ...], gaps: list[int]) -> None:
        self.order = order
        starts, place = [], 0
        for slot, motif in enumerate(order):
            starts.append(place)
            place += SIZES[motif] + (gaps[slot] if slot < len(gaps) else 0)
        self.starts, self.size = starts, place


def draw_group(right: bool, rng: np.random.Generator) -> Draw:
    """A right group, or a wrong one: another order, or another distance, equally often."""
    gaps = [gap + int(rng.integers(-JITTER, JITTER + 1)) for gap in GAPS]
    if right:
        return Draw((0, 1, 2, 3), gaps)
    if rng.random() < 0.5:
        return Draw(ORDERS[int(rng.integers(len(ORDERS)))], gaps)
    gaps[int(rng.integers(3))] += OFF[int(rng.integers(len(OFF)))]
    return Draw((0, 1, 2, 3), gaps)


def draw_sequence(
    label: int, length: int, groups: int, noise: float, rng: np.random.Generator
) -> np.ndarray:
    """Bases (length,) of one sequence, uint8."""
    found = rng.integers(4, size=length, dtype=np.uint8)
    edges = np.linspace(0, length, groups + 1).astype(int)
    right = int(rng.integers(groups)) if label else -1
    for part in range(groups):
        group = draw_group(part == right, rng)
        start = int(rng.integers(edges[part], edges[part + 1] - ROOM + 1))
        for motif, offset in zip(group.order, group.starts, strict=True):
            own = CODES[motif].copy()
            changed = rng.random(len(own)) < noise
            own[changed] = rng.integers(4, size=int(changed.sum()), dtype=np.uint8)
            found[start + offset : start + offset + len(own)] = own
    return found


def log_odds(found: np.ndarray, groups: int, noise: float) -> float:
    """log P(sequence | promoter) − log P(sequence | not): above 0 it rather is one."""
    edges = np.linspace(0, len(found), groups + 1).astype(int)
    ratios = []
    for part in range(groups):
        own = found[edges[part] : edges[part + 1]]
        right, wrong = _likelihoods(own, noise)
        with np.errstate(divide="ignore"):  # without noise one of them is 0
            ratios.append(np.log(right) - np.log(wrong))
    return float(np.logaddexp.reduce(ratios) - np.log(groups))


def _likelihoods(found: np.ndarray, noise: float) -> tuple[float, float]:
    """Of a part with a right group and with a wrong one, each over that of random bases."""
    own = [_motif(found, code, noise) for code in CODES]  # (places,) each
    count = len(found) - ROOM + 1
    right = _group(own, (0, 1, 2, 3), GAPS, count)
    ordered = sum(_group(own, order, GAPS, count) for order in ORDERS) / len(ORDERS)
    apart = 0.0
    for place in range(3):
        for off in OFF:
            gaps = tuple(gap + off * (slot == place) for slot, gap in enumerate(GAPS))
            apart += _group(own, (0, 1, 2, 3), gaps, count) / (3 * len(OFF))
    return right, (ordered + apart) / 2


def _motif(found: np.ndarray, code: np.ndarray, noise: float) -> np.ndarray:
    """P(bases | motif) over P(random bases) at each place, 0 where it does not fit."""
    same, other = 4 * (1 - noise + noise / 4), 4 * noise / 4
    windows = np.lib.stride_tricks.sliding_window_view(found, len(code))
    ratio = np.where(windows == code, same, other).prod(1)
    return np.pad(ratio, (0, len(code) + ROOM))


def _group(
    own: list[np.ndarray], order: tuple[int, ...], gaps: tuple[int, ...], count: int
) -> float:
    """The mean over starts and jitters of the product of the motifs' ratios."""
    jitters = range(-JITTER, JITTER + 1)
    longest = count + ROOM
    ahead = own[order[-1]][:longest]
    for slot in (2, 1, 0):
        motif = order[slot]
        step = SIZES[motif] + gaps[slot]
        moved = np.zeros(longest)
        for jitter in jitters:
            shift = step + jitter
            moved[: longest - shift] += ahead[shift:] / len(jitters)
        ahead = own[motif][:longest] * moved
    return float(ahead[:count].mean())


def best_accuracy(length: int, groups: int, noise: float, draws: int = 200, seed: int = 0) -> float:
    """The accuracy of the true probability on this many drawn sequences, half of them promoters."""
    rng = np.random.Generator(np.random.PCG64([seed, VERSION, 7]))
    right = 0
    for row in range(draws):
        found = draw_sequence(row % 2, length, groups, noise, rng)
        right += (log_odds(found, groups, noise) > 0) == bool(row % 2)
    return right / draws

"""Leaks: columns that tell the label by themselves, before anything is learned of order or time.

For each column, a few plain statistics of a client (the mean, last, least and largest value; the
mean, least and largest share of the label among a category's events) are ranked by training
clients, and the best one is judged on others. A column whose Gini is nearly 1 was most likely
written after the label was known: the status of a closed account, a penalty fee, a date of default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.events.store import Store
from weft.training.scores.ranking import gini

MOST = 4000  # clients of a split that are looked at
SURE = 0.95  # Gini from which on a column is said to leak
PRIOR = 20.0  # events of the usual share that a category's share starts from


@dataclass(frozen=True)
class TellingColumn:
    """How well a column ranks clients by itself."""

    column: str
    statistic: str
    gini: float  # of clients that it was not chosen on
    chosen: float = 1.0  # of those that it was chosen on

    @property
    def leaks(self) -> bool:
        """Whether it says nearly all, also of training: a few validation clients prove nothing."""
        return min(self.gini, self.chosen) >= SURE

    def __str__(self) -> str:
        return f"{self.column} ({self.statistic}) {self.gini:.3f}"


def columns_alone(
    store: Store, train: np.ndarray, judged: np.ndarray, labels: np.ndarray
) -> list[TellingColumn]:
    """Every column's best statistic, the strongest first; `labels` (clients,) are 0 and 1."""
    rng = np.random.Generator(np.random.PCG64(0))
    train, judged = (
        each if len(each) <= MOST else rng.choice(each, MOST, replace=False)
        for each in (train, judged)
    )
    both = np.concatenate((train, judged))
    both = both[store.lengths[both] > 0]
    own = labels[both].astype(float)
    fitted = np.isin(both, train)
    if len(set(own[fitted])) < 2 or len(set(own[~fitted])) < 2:
        return []
    best: dict[str, tuple[float, TellingColumn]] = {}
    for column, statistic, values in _statistics(store, both, own, fitted):
        values = np.nan_to_num(values, nan=np.inf)  # missing ranks together, at one end
        seen = gini(values[fitted], own[fitted])
        other = gini(values[~fitted], own[~fitted]) * (1 if seen >= 0 else -1)
        if column not in best or abs(seen) > best[column][0]:
            best[column] = (abs(seen), TellingColumn(column, statistic, other, abs(seen)))
    return sorted((alone for _, alone in best.values()), key=lambda one: -one.gini)


def _statistics(
    store: Store, clients: np.ndarray, labels: np.ndarray, fitted: np.ndarray
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Column, statistic and its value for each client (clients,)."""
    sizes = store.lengths[clients]
    starts = np.cumsum(sizes) - sizes
    events = np.repeat(store.starts[clients] - starts, sizes) + np.arange(sizes.sum())
    columns = store.encoders.columns
    yield columns.time, "number of events", sizes.astype(float)
    yield columns.time, "last event", store.times[events[starts + sizes - 1]]
    yield columns.time, "first event", store.times[events[starts]]
    label = np.repeat(labels, sizes)
    known = np.repeat(fitted, sizes)
    for place, name in enumerate(columns.categories):
        codes = store.codes[events, place].astype(np.int64)
        seen = np.bincount(codes, weights=known)
        usual = float(labels[fitted].mean())
        share = np.bincount(codes, weights=known * label) + PRIOR * usual
        rates = (share / (seen + PRIOR))[codes]
        yield name, "mean share", np.add.reduceat(rates, starts) / sizes
        yield name, "largest share", np.maximum.reduceat(rates, starts)
        yield name, "least share", np.minimum.reduceat(rates, starts)
    for place, name in enumerate(columns.numbers):
        values = store.numbers[events, place].astype(float)
        missing = np.isnan(values)
        held = np.maximum(np.add.reduceat(~missing, starts), 1)
        yield name, "mean", np.add.reduceat(np.where(missing, 0.0, values), starts) / held
        yield name, "last", values[starts + sizes - 1]
        yield name, "largest", np.fmax.reduceat(values, starts)
        yield name, "least", np.fmin.reduceat(values, starts)
        yield name, "share missing", np.add.reduceat(missing.astype(float), starts) / sizes

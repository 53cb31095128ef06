"""Checks of a task: the same data each time, disjoint splits, ids and classes in range, baselines.

A task is loaded whole, so give a small one: `MyTask(train=200, valid=50, test=50)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import SPLITS, TASKS
from weft.metrics import MetricName, metric
from weft.registry import Registry
from weft.testing import promises

KINDS = ("classify", "match", "regress", "language", "translate")


def check_facts(task: Any) -> None:
    """What commands need of a task: kind, sizes, metric, source; a kind that its data fits."""
    assert task.kind in KINDS, f"{task}: kind is one of {KINDS}; got {task.kind!r}"
    assert task.metric in get_args(MetricName), f"{task}: no metric named {task.metric!r}"
    assert task.source, f"{task}: source says which data this is"
    assert task.length >= 1, f"{task}: length is at least 1; got {task.length}"
    classed, paired = task.kind in ("classify", "match"), task.kind in ("match", "translate")
    assert (task.classes > 0) == classed, f"{task}: {task.kind} with {task.classes} classes"
    for split in SPLITS:
        found = task.load(split)
        assert len(found) > 0, f"{task}: {split} holds no rows"
        assert (found.labels is not None) == classed, f"{task}, {split}: labels are for classes"
        assert (found.second is not None) == paired, f"{task}, {split}: second is for pairs"
    assert isinstance(task.show(found.rows[0]), str), f"{task}: show gives text"


def check_range(task: Any) -> None:
    """Ids are below vocab, classes below classes, and groups have names."""
    for split in SPLITS:
        found, what = task.load(split), f"{task}, {split}"
        for rows in filter(None, (found.rows, found.second)):
            if isinstance(rows, TokenRows):
                _within(rows.tokens, task.vocab, f"{what}: tokens, vocab")
            else:
                _check_channels(rows[0], task.inputs, what)
        if found.labels is not None:
            _within(found.labels, task.classes, f"{what}: labels, classes")
        if found.groups is not None:
            _within(found.groups, len(found.group_names), f"{what}: groups, names")


def _check_channels(row: np.ndarray, inputs: dict[str, Any], what: str) -> None:
    """A row (n, channels): categories first, each below its number of codes."""
    width = row.shape[1]
    assert width == inputs["channels"], f"{what}: {width} channels, inputs {inputs}"
    for place, size in enumerate(inputs["categories"]):
        _within(row[:, place], size, f"{what}: channel {place}, categories")


def check_same_again(task: Any) -> None:
    """An equal task loads equal splits: data is a function of the settings alone."""
    again = dataclasses.replace(task)
    for split in SPLITS:
        np.random.default_rng().random()
        one, two = task.load(split), again.load(split)
        assert list(_rows(one)) == list(_rows(two)), f"{task}: {split} differs when loaded again"
        for name in ("labels", "groups"):
            a, b = getattr(one, name), getattr(two, name)
            same = a is b is None or np.array_equal(a, b)
            assert same, f"{task}: {name} of {split} differ when loaded again"


def check_splits(task: Any, *, shared: float = 0.0) -> None:
    """No row of one split is in another; `shared`: the share that chance may repeat."""
    seen: set[bytes] = set()
    for split in SPLITS:
        rows = list(_rows(task.load(split)))
        again = sum(row in seen for row in rows) / len(rows)
        assert again <= shared, (
            f"{task}: {again:.1%} of {split} is in an earlier split; a model is scored on what "
            "it has seen"
        )
        seen.update(rows)


def check_baselines(task: Any) -> None:
    """Scores of rules that learn nothing, by name, in the range of the metric."""
    found = task.baselines()
    assert found, f"{task}: a task says how well one does without learning"
    for name, value in found.items():
        most = 1.0 if metric(task.metric).share else math.inf
        least = -1.0 if task.metric == "gini" else 0.0
        possible = least <= value <= most and math.isfinite(value)
        assert possible, f"{task}: baseline {name!r} is not a valid {task.metric}: {value}"


def check_round_trip(task: Any, *, registry: Registry = TASKS) -> None:
    """Its text and its dict read back as the same settings."""
    promises.compare_forms(task, registry)


CHECKS: dict[str, Callable[..., None]] = {
    "facts": check_facts,
    "range": check_range,
    "same_again": check_same_again,
    "splits": check_splits,
    "baselines": check_baselines,
    "round_trip": check_round_trip,
}


def _within(values: np.ndarray, bound: int, what: str) -> None:
    if len(values):
        low, high = int(values.min()), int(values.max())
        assert 0 <= low <= high < bound, f"{what} = {bound}: they run from {low} to {high}"


def _rows(found: Examples) -> Iterator[bytes]:
    """Each row as a model reads it: cut to the length, both documents of a pair."""
    for at in range(len(found)):
        parts = [rows[at][: found.length] for rows in filter(None, (found.rows, found.second))]
        yield b"|".join(np.ascontiguousarray(_plain(part)).tobytes() for part in parts)


def _plain(row: np.ndarray) -> np.ndarray:
    """Ids of any integer type as one type; values as they are."""
    return row if row.dtype.kind == "f" else np.asarray(row, dtype=np.int64)

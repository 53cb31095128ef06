"""What a file of events holds, as text for people: clients, splits, what was mended, what leaks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from weft.arena.tasks.base import SPLITS
from weft.arena.tasks.events.leaks import TellingColumn, columns_alone
from weft.events.pieces import SECONDS

SHOWN = 3  # columns whose score alone is said
MOST_CLASSES = 6  # that leaks are looked for


def describe_events(task: Any) -> str:
    """Several lines of plain text; nothing of it is needed to train."""
    found = task.prepared
    parts = (_files, _columns, _mended, _splits, _lengths, _leaks)
    return "\n".join(line for part in parts for line in part(task, found))


def alone(task: Any) -> list[TellingColumn]:
    """How well each column ranks validation clients by itself; of several classes, the best."""
    found = task.prepared
    train, judged = (np.flatnonzero(found.splits == place) for place in (0, 1))
    best: dict[str, TellingColumn] = {}
    wanted = [1] if len(found.names) == 2 else range(min(len(found.names), MOST_CLASSES))
    for label in wanted:
        for each in columns_alone(found.store, train, judged, found.labels == label):
            if each.column not in best or each.gini > best[each.column].gini:
                best[each.column] = each
    return sorted(best.values(), key=lambda one: -one.gini)


def _files(task: Any, found: Any) -> list[str]:
    store = found.store
    times = store.times
    period = f"{_date(times.min())} to {_date(times.max())}" if len(times) else "none"
    return [
        f"events   {', '.join(found.files)}: {len(times):,} events of {len(store):,} clients, "
        f"{period}"
    ]


def _columns(task: Any, found: Any) -> list[str]:
    encoders = found.store.encoders
    pairs = zip(encoders.columns.categories, encoders.codes, strict=True)
    categories = ", ".join(f"{name} ({len(each.values):,} values)" for name, each in pairs)
    lines = [f"columns  categories: {categories or 'none'}"]
    lines.append(
        f"         numbers, by {task.scale}: {', '.join(encoders.columns.numbers) or 'none'}"
    )
    return lines


def _mended(task: Any, found: Any) -> list[str]:
    lines = [f"mended   {line}" for line in found.remarks[:1]]
    return lines + [f"         {line}" for line in found.remarks[1:]]


def _splits(task: Any, found: Any) -> list[str]:
    sizes = []
    for place, split in enumerate(SPLITS):
        own = found.labels[found.splits == place]
        share = f", {(own == 1).mean():.1%} {found.names[1]}" if len(found.names) == 2 else ""
        sizes.append(f"{split} {len(own):,}{share}")
    how = f"by a hash of {task.id}: no client is in two splits"
    lines = [f"splits   {'; '.join(sizes)} ({how})"]
    if task.out_of_time:
        lines.append(f"         test: clients whose end is on {task.out_of_time} or later")
    if task.until is None:
        lines.append(
            "         no column says until when events were known (until): all of them are read, "
            "so leave out those that happened after the label was decided"
        )
    return lines


def _lengths(task: Any, found: Any) -> list[str]:
    lengths = found.store.lengths[found.splits >= 0]
    cut = int((lengths > task.length).sum())
    return [
        f"length   events of a client: mean {lengths.mean():,.0f}, longest {lengths.max():,}; the "
        f"last {task.length:,} are read, {cut:,} clients are cut ({cut / len(lengths):.1%})"
    ]


def _leaks(task: Any, found: Any) -> list[str]:
    scores = alone(task)
    if not scores:
        return ["alone    too few clients to see what single columns tell"]
    strongest = ", ".join(map(str, scores[:SHOWN]))
    lines = [f"alone    Gini of single columns on validation clients: {strongest}"]
    lines += [
        f"LEAK?    {each.column} tells the label by itself (Gini {each.gini:.3f}, "
        f"{each.statistic}): was it written after the label was known? If so, leave it out"
        for each in scores
        if each.leaks
    ]
    return lines


def _date(day: float) -> str:
    return datetime.fromtimestamp(day * SECONDS, UTC).strftime("%Y-%m-%d")

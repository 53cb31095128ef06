"""What a table holds, as text for people: rows, lengths, splits, classes, and what is wrong."""

from __future__ import annotations

from math import isfinite

import numpy as np

from weft.arena.tasks.base import SPLITS
from weft.arena.tasks.table.prepared import PERCENTILE, Prepared, sequence_lengths
from weft.arena.tasks.table.rows import first_ten
from weft.arena.tasks.table.splits import LEFT_OUT
from weft.arena.tasks.table.task import Table
from weft.arena.tasks.table.tokens import BYTES

IMBALANCED = 2  # a class more than this many times its even share is pointed out,
DOMINANT = 0.75  # and so is one with more than this share, which of two classes is all there can be
MOST_SHOWN = 20  # classes that are listed
MANY_NUMBERS = 8  # classes, all of them numbers, that may be meant as numbers


def describe(task: Table) -> str:
    """Several lines of plain text; nothing of it is needed to train."""
    found = task.prepared
    parts = (_files, _splits, _lengths, _globals, _classes, _imbalance)
    return "\n".join(line for part in parts for line in part(task, found))


def imbalance(labels: np.ndarray, classes: int) -> tuple[int, float, float]:
    """The most frequent class, its share, and how many times an even share that is."""
    counts = np.bincount(labels, minlength=classes)
    share = float(counts.max() / counts.sum())
    return int(counts.argmax()), share, share * classes


def _files(task: Table, found: Prepared) -> list[str]:
    used = len(found.labels)
    lines = [f"table    {', '.join(found.files)}: {found.total:,} rows, {used:,} of them usable"]
    if found.bad:
        lost = found.total - used
        lines.append(f"left out {lost:,} rows ({lost / found.total:.1%}); the file stays as it is")
        lines += [f"           {line}" for line in first_ten(list(found.bad))]
    return lines


def _splits(task: Table, found: Prepared) -> list[str]:
    counts = [int((found.splits == place).sum()) for place in range(len(SPLITS))]
    made = [split for split in SPLITS[1:] if split not in found.given]
    how = "as given"
    if made:
        how = f"{' and '.join(made)} made from train: each class its share, seed {task.seed}"
        how += f"; each {task.group} in one split" if task.group else ""
    sizes = ", ".join(f"{s} {n:,}" for s, n in zip(SPLITS, counts, strict=True))
    lines = [f"splits   {sizes} ({how})"]
    leaked = int((found.splits == LEFT_OUT).sum())
    if leaked:
        lines.append(
            f"         {leaked:,} rows left out of train or valid: their text is in a later split "
            "too (keep_leaks keeps them)"
        )
    if found.repeated:
        lines.append(
            f"         {found.repeated:,} rows repeat the text of another"
            + ("" if task.keep_leaks and found.given else "; no text is in two splits")
        )
    if found.conflicts:
        lines.append(f"         {found.conflicts:,} texts have several labels: no model gets both")
    return lines


def _lengths(task: Table, found: Prepared) -> list[str]:
    lengths = sequence_lengths(found)
    cut = int((lengths > task.length).sum())
    unit = "bytes" if task.tokens == BYTES else "tokens"
    columns = " and ".join(filter(None, (task.global_text, task.text, task.second)))
    usual = np.percentile(lengths, PERCENTILE)
    return [
        f"text     {unit} of {columns}: mean {lengths.mean():,.0f}, {PERCENTILE}th percentile "
        f"{usual:,.0f}, longest {lengths.max():,}",
        f"length   {task.length:,}: {cut:,} of {len(lengths):,} texts are cut "
        f"({cut / len(lengths):.1%})",
    ]


def _globals(task: Table, found: Prepared) -> list[str]:
    """How many tokens are global, and by which rule."""
    if not found.rows.marks:
        return []
    each = found.rows.padded_marks(np.arange(len(found.rows)), (len(found.rows), task.length))
    counts = each["is_global"].sum(1)
    rules = [f"those of {task.global_text}"] if task.global_text else []
    rules += [f"the last character of each {task.global_after!r}"] if task.global_after else []
    return [
        f"global   {' and '.join(rules)}: mean {counts.double().mean():,.0f} tokens of a row, most "
        f"{int(counts.max()):,}"
    ]


def _classes(task: Table, found: Prepared) -> list[str]:
    if found.numbers is not None:
        return [
            f"numbers  {task.label}: mean {found.numbers.offset:,.4g}, standard deviation "
            f"{found.numbers.scale:,.4g} in train; errors are in units of it, 1 is the mean's"
        ]
    counts = np.bincount(found.labels, minlength=len(found.names))
    order = np.argsort(-counts, kind="stable") if len(counts) > MOST_SHOWN else range(len(counts))
    width = max(len(name) for name in found.names)
    lines = [f"classes  {len(counts)} in {task.label}"]
    for place in list(order)[:MOST_SHOWN]:
        share = counts[place] / counts.sum()
        bar = "█" * max(1, round(30 * counts[place] / counts.max()))
        name = found.names[place].ljust(width)
        lines.append(f"           {name}  {counts[place]:>8,}  {share:>6.1%}  {bar}")
    if len(counts) > MOST_SHOWN:
        lines.append(f"           and {len(counts) - MOST_SHOWN} smaller ones")
    if len(counts) >= MANY_NUMBERS and all(map(_is_number, found.names)):
        lines.append(
            "           every class is a number; where their distances count, number=True "
            "(--number) predicts the number itself"
        )
    return lines


def _is_number(name: str) -> bool:
    try:
        return isfinite(float(name))
    except ValueError:
        return False


def _imbalance(task: Table, found: Prepared) -> list[str]:
    if found.numbers is not None:
        return []
    place, share, times = imbalance(found.labels, len(found.names))
    if times <= IMBALANCED and share <= DOMINANT:
        return []
    return [
        f"IMBALANCE  {found.names[place]!r} is {share:.1%} of the rows, {times:.1f} times an even "
        f"share of {1 / len(found.names):.1%}: accuracy has to be judged against the majority class"
    ]

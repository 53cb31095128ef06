"""Long Range Arena, our cells beside the published ones: scores, agreement, and what is missing.

A `Paper` maps mechanism and task to the published per cent. Scores of rows are shares, shown as
per cent. Where a cell has several rows, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.errors import WeftError
from weft.report.read.statistics import spearman
from weft.report.tables.table import TextTable
from weft.rows import Row

FAR = 3.0  # points of difference from which a cell needs a sentence

Paper = Mapping[tuple[str, str], float]  # mechanism, task -> per cent


def accuracy_table(
    rows: Sequence[Row], rules: Sequence[Row], paper: Paper, lengths: Mapping[str, int]
) -> TextTable:
    """Test scores by mechanism and task, the paper's in brackets; below them, trivial rules."""
    cells = {(row["label"], row["task"]): row for row in rows}
    labels = dict.fromkeys(label for label, _ in (*paper, *cells))
    reached = {(row["rule"], row["task"]): f"{100 * row['score']:.2f}" for row in rules}

    def shown(label: str, task: str) -> str:
        published = paper.get((label, task))
        return _outcome(cells.get((label, task))) + (f" ({published:.2f})" if published else "")

    table = TextTable("", ["mechanism", *(f"{task}, {n:,} tokens" for task, n in lengths.items())])
    for label in labels:
        table.cells.append([f"`{label}`", *(shown(label, task) for task in lengths)])
    for rule in dict.fromkeys(row["rule"] for row in rules):
        table.cells.append([rule, *(reached.get((rule, task), "–") for task in lengths)])
    return table


def agreement_table(rows: Sequence[Row], paper: Paper, tasks: Sequence[str]) -> TextTable:
    """How far our scores are from the paper's, and whether they order mechanisms alike."""
    header = ["task", "cells", "mean absolute difference, points", "rank correlation"]
    table = TextTable("", header)
    found = differences(rows, paper)
    for task in tasks:
        pairs = [(own, paper[cell]) for cell, (own, _) in found.items() if cell[1] == task]
        away = [abs(own - theirs) for own, theirs in pairs]
        if not pairs:
            table.cells.append([task, "0", "–", "–"])
            continue
        rho = f"{spearman(*zip(*pairs, strict=True)):+.2f}" if len(pairs) > 2 else "–"
        rho = rho.replace("-", "−")
        table.cells.append([task, str(len(pairs)), f"{sum(away) / len(away):.2f}", rho])
    return table


def far_table(rows: Sequence[Row], paper: Paper, notes: Mapping[str, str]) -> TextTable:
    """Cells that differ by more than `FAR` points, with their sentences: `task.mechanism`."""
    found = differences(rows, paper)
    far = {f"{task}.{label}": (label, task) for label, task in found}
    far = {name: cell for name, cell in far.items() if abs(found[cell][1]) > FAR}
    _same_cells("differs by more than 3 points", far, notes)
    table = TextTable("", ["task", "mechanism", "ours", "paper", "difference", "why"])
    for name, cell in far.items():
        own, away = found[cell]
        numbers = [f"{own:.2f}", f"{paper[cell]:.2f}", f"{away:+.1f}".replace("-", "−")]
        table.cells.append([cell[1], f"`{cell[0]}`", *numbers, notes[name]])
    return table


def missing_table(
    rows: Sequence[Row], paper: Paper, tasks: Sequence[str], minutes: Mapping[str, str]
) -> TextTable:
    """Published cells without a score of ours, by task, with the GPU minutes each would take."""
    done = {(row["label"], row["task"]) for row in rows if row["test_score"] is not None}
    cells = [(task, label) for task in tasks for label, own in paper if own == task]
    open_cells = [cell for cell in cells if cell[::-1] not in done]
    _same_cells("has no score", {f"{t}.{label}": None for t, label in open_cells}, minutes)
    table = TextTable("", ["task", "mechanism: minutes"])
    for task in tasks:
        own = [f"`{label}` {minutes[f'{task}.{label}']}" for t, label in open_cells if t == task]
        if own:
            table.cells.append([task, ", ".join(own)])
    return table


def differences(rows: Sequence[Row], paper: Paper) -> dict[tuple[str, str], tuple[float, float]]:
    """Per cent of ours and its distance from the paper's, by mechanism and task."""
    ours = {
        (row["label"], row["task"]): 100 * row["test_score"]
        for row in rows
        if row["test_score"] is not None
    }
    return {cell: (ours[cell], ours[cell] - paper[cell]) for cell in paper if cell in ours}


def _outcome(row: Row | None) -> str:
    if row is None:
        return "not run"
    if row["test_score"] is not None:
        return f"{100 * row['test_score']:.2f}"
    # Without the name of the error, and up to its details.
    reason = re.sub(r"^\w+: ", "", row["reason"] or "no reason given")
    return f"{row['status']} ({re.split(r' [(]|;', reason)[0]})"


def _same_cells(what: str, cells: Mapping[str, object], notes: Mapping[str, object]) -> None:
    if set(cells) != set(notes):
        bare, idle = sorted(set(cells) - set(notes)), sorted(set(notes) - set(cells))
        raise WeftError(
            f"every cell that {what} has a note, and no other has; without a note: {bare}; "
            f"noted without need: {idle}"
        )

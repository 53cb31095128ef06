"""Batches with the marks that rules give their tokens (`models/usage/mark_rules.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.models.usage.mark_rules import Rules, marks_by
from weft.objectives.batch import Batch


def marked(batch: Batch, rules: Rules, both: bool = False) -> Batch:
    """The batch with the marks that the rules give; `both`: of the second documents too."""
    if not rules:
        return batch
    first, *others = [
        marks_by(rules, document.ids, document.valid, document.marks)
        for document in batch.documents()
    ]
    return replace(batch, marks=first, **({"second_marks": others[0]} if both and others else {}))


class MarkedRows:
    """A split, or a source, whose batches are marked by rules and keep the marks of these names."""

    def __init__(self, rows: Any, rules: Rules, names: set[str], both: bool = False) -> None:
        self.rows, self.names, self.both = rows, names, both
        self.rules = {name: rule for name, rule in rules.items() if name in names}

    def __getattr__(self, name: str) -> Any:
        if name == "rows":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.rows, name)  # lengths, names of groups, ...

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return str(self.rows)

    @property
    def fingerprint(self) -> str | None:
        """That of the rows, and what marks them."""
        own = getattr(self.rows, "fingerprint", None)
        rules = [f"{name}={rule}" for name, rule in sorted(self.rules.items())]
        return " ".join([own, *rules]) if own is not None else None

    def batch(self, which: Any) -> Batch:
        """The rows of these numbers, or the batch of this step."""
        found = marked(self.rows.batch(which), self.rules, self.both)
        kept = {
            kind: {name: mark for name, mark in getattr(found, kind).items() if name in self.names}
            for kind in ("marks", "second_marks")
        }
        return replace(found, **kept)

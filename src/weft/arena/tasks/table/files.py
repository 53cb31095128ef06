"""Columns of a table on disk, read whole (`streams.py` reads row by row)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.arena.tasks.table.streams import Bad, stream_table


@dataclass
class Contents:
    """The wanted columns of a file: row i of it begins on lines[i]."""

    file: str
    columns: dict[str, list[Any]]
    lines: list[int] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)

    def add(self, line: int, values: Sequence[Any]) -> None:
        """One row, its values in the order of the columns."""
        self.lines.append(line)
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)


def read_table(path: str | Path, columns: Sequence[str], encoding: str = "utf-8") -> Contents:
    """The wanted columns of a file of any known kind."""
    found = Contents(Path(path).name, {name: [] for name in dict.fromkeys(columns)})
    for item in stream_table(path, columns, encoding):
        if isinstance(item, Bad):
            found.bad.append(item)
        else:
            found.add(item[0], [item[1][name] for name in found.columns])
    return found

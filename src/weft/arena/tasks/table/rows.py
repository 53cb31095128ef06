"""The rows of a table that can be used: a text, perhaps a second one, a label, perhaps a split.

Rows that cannot are left out and reported: no text, no label, bytes that do not decode, a split
with an unknown name, and what the readers refuse. More of them than `bad_share` is an error: then
the file, or the way it is read, is wrong.
"""

from __future__ import annotations

import glob
import math
import os
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from weft.arena.tasks.base import SPLITS, Split
from weft.arena.tasks.table.files import Contents, read_table
from weft.arena.tasks.table.streams import Bad
from weft.errors import WeftError
from weft.models.usage.texts import with_lead

SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
NOT_A_NUMBER = "nan"
SHOWN = 10  # bad rows that are named


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which rows to read; the table task is the home of the defaults."""

    data: str | tuple[str, ...]
    text: str
    label: str
    second: str | None
    group: str | None
    global_text: str | None
    split: str | None
    valid_file: str | None
    test_file: str | None
    encoding: str
    bad_share: float
    most_classes: int
    number: bool

    def files(self) -> dict[str, Split | None]:
        """The files, each with the split that it is; None: train, or what its column says."""
        patterns = (self.data,) if isinstance(self.data, str) else self.data
        found: dict[str, Split | None] = {}
        for pattern in patterns:
            found.update(dict.fromkeys(_matching(pattern)))
        own: tuple[tuple[Split, str | None], ...]
        own = ("valid", self.valid_file), ("test", self.test_file)
        for split, pattern in own:
            for path in _matching(pattern) if pattern else ():
                if path in found:
                    raise WeftError(f"{path} is given twice, as {split} and as other rows")
                found[path] = split
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of every file."""
        return (self.text, self.label, *filter(None, (self.second, self.group, self.global_text)))


@dataclass
class Usable:
    """The good rows, column by column, and the bad ones."""

    texts: list[str] = field(default_factory=list)
    leads: list[int] = field(default_factory=list)  # characters of global text before each text
    seconds: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    splits: list[Split | None] = field(default_factory=list)
    label_kinds: set[type] = field(default_factory=set)  # as the file has them
    origins: list[tuple[str, int]] = field(default_factory=list)  # file and line
    bad: list[Bad] = field(default_factory=list)

    def leave_out(self, which: set[int], reason: str) -> None:
        """Make these good rows bad."""
        self.bad.extend(Bad(*self.origins[row], reason) for row in sorted(which))
        parts = (self.texts, self.leads, self.seconds, self.labels, self.groups, self.splits)
        for column in cast(tuple[list[Any], ...], (*parts, self.origins)):
            column[:] = [value for row, value in enumerate(column) if row not in which]

    @property
    def refused(self) -> int:
        """How many rows, counted in lines, are bad."""
        return sum(row.lines for row in self.bad)

    @property
    def total(self) -> int:
        """All rows, good and bad."""
        return len(self.texts) + self.refused


def usable_rows(wanted: Wanted) -> Usable:
    """Read all files and sort the good rows from the bad."""
    rows = Usable()
    for path, split in wanted.files().items():
        column = wanted.split if split is None else None
        columns = (*wanted.columns, column) if column else wanted.columns
        _sort(read_table(path, columns, wanted.encoding), wanted, split, column, rows)
    return rows


def check_share(rows: Usable, wanted: Wanted) -> None:
    """Refuse a table without good rows, or with more bad ones than are accepted."""
    if not rows.texts or rows.refused > wanted.bad_share * rows.total:
        raise WeftError(_too_bad(rows, wanted))


def class_names(labels: list[str], most: int) -> tuple[str, ...]:
    """The classes in order: of their numbers if all are numbers, else of their letters."""
    names = sorted(set(labels))
    numbers = all(_number(name) is not None for name in names)
    if len(names) < 2:
        raise WeftError(f"a classifier tells classes apart; every label is {names[0]!r}")
    if len(names) > most:
        what = "numbers to predict" if numbers else "text"
        way = "bin them first into a column of classes" if numbers else "choose another column"
        raise WeftError(
            f"the label has {len(names):,} distinct values in {len(labels):,} rows, such as "
            f"{', '.join(map(repr, names[:3]))}; more than {most} look like {what}: {way}, or "
            f"give most_classes={len(names)}"
        )
    return tuple(sorted(names, key=lambda name: (_number(name), name)) if numbers else names)


def typed_labels(names: tuple[str, ...], kinds: set[type]) -> tuple[Any, ...]:
    """The class names as the file wrote them: numbers and booleans where all of them are."""
    if kinds == {bool}:
        return tuple(name == "true" for name in names)
    if kinds == {int}:
        return tuple(map(int, names))
    return tuple(map(float, names)) if kinds and kinds <= {int, float} else names


def class_numbers(labels: list[str], names: tuple[str, ...]) -> np.ndarray:
    """(rows,) the place of each label among the names."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[label] for label in labels], dtype=np.int64)


def first_ten(bad: list[Bad]) -> list[str]:
    """The first bad rows by name, and how many more there are."""
    shown = [str(row) for row in bad[:SHOWN]]
    return [*shown, f"and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else shown


def _sort(
    contents: Contents, wanted: Wanted, split: Split | None, column: str | None, rows: Usable
) -> None:
    """Add one file's rows to the good or to the bad."""
    found = []
    for place, line in enumerate(contents.lines):
        try:
            text = _text(contents.columns[wanted.text][place], wanted.text)
            lead = wanted.global_text and _text(
                contents.columns[wanted.global_text][place], wanted.global_text
            )
            second = wanted.second and _text(contents.columns[wanted.second][place], wanted.second)
            label = _label(contents.columns[wanted.label][place], wanted)
            group = wanted.group and _group(contents.columns[wanted.group][place], wanted.group)
            own = split if column is None else _split(contents.columns[column][place], column)
        except _Unusable as cause:
            found.append(Bad(contents.file, line, str(cause)))
            continue
        rows.texts.append(with_lead(lead, text))
        rows.leads.append(len(lead or ""))
        rows.labels.append(label)
        rows.label_kinds.add(type(contents.columns[wanted.label][place]))
        rows.splits.append(own)
        rows.origins.append((contents.file, line))
        if second is not None:
            rows.seconds.append(second)
        if group is not None:
            rows.groups.append(group)
    rows.bad.extend(sorted([*contents.bad, *found], key=lambda row: row.line))


class _Unusable(ValueError):
    """Why a row is bad."""


def plain_text(value: Any, column: str) -> str:
    """A cell that holds text, or a number as text; ValueError with the reason where it does not."""
    return _text(value, column)


def _text(value: Any, column: str) -> str:
    value = _plain(value, column)
    if not value.strip():
        raise _Unusable(f"missing text in {column!r}")
    return value


def _label(value: Any, wanted: Wanted) -> str:
    value = _plain(value, wanted.label).strip()
    if not value:
        raise _Unusable(f"missing label in {wanted.label!r}")
    if value.lower() == NOT_A_NUMBER:  # what many programs write where there is none
        raise _Unusable(f"missing label in {wanted.label!r}: {value!r}")
    if wanted.number and _number(value) is None:
        raise _Unusable(f"{wanted.label!r} is to be a number; got {value[:40]!r}")
    return value


def _group(value: Any, column: str) -> str:
    value = _plain(value, column).strip()
    if not value:
        raise _Unusable(f"missing group in {column!r}")
    return value


def _split(value: Any, column: str) -> Split:
    name = _plain(value, column).strip()
    if name.lower() not in SPLIT_NAMES:
        known = ", ".join(SPLITS)
        raise _Unusable(f"the split in {column!r} is none of {known}; got {name!r}")
    return SPLIT_NAMES[name.lower()]


def _plain(value: Any, column: str) -> str:
    """A cell as text: true for True, 5 for 5 and 5.0; nothing where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float):
        raise _Unusable(f"{column!r} holds text or numbers; got a {type(value).__name__}")
    value = str(value)
    try:
        value.encode()
    except UnicodeEncodeError as cause:
        raise _Unusable(f"undecodable bytes in {column!r}") from cause
    return value


def _number(name: str) -> float | None:
    """The number that a label writes, if it writes one."""
    try:
        number = float(name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _matching(pattern: str) -> list[str]:
    """The files of a path with * or ?, in order; any other path is itself."""
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [pattern]
    found = sorted(glob.glob(pattern))
    if not found:
        raise WeftError(f"no file matches {pattern!r}")
    return found


def _too_bad(rows: Usable, wanted: Wanted) -> str:
    if not rows.total:
        return f"there are no rows in {wanted.data}; a table has at least some"
    share = rows.refused / rows.total
    accepted = math.ceil(share * 100) / 100
    lines = "\n  ".join(first_ten(rows.bad))
    undecoded = any("undecodable" in row.reason for row in rows.bad)
    way = f" If the file is no {wanted.encoding}, give its encoding=." if undecoded else ""
    return (
        f"{rows.refused:,} of {rows.total:,} rows cannot be used ({share:.0%}, at most "
        f"{wanted.bad_share:.0%}):\n  {lines}\n"
        f"Repair a copy of the file, or leave them out with bad_share={accepted}.{way}"
    )

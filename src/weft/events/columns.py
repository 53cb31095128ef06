"""Which columns of a file are what: client, time, label, categories and numbers.

Columns that nobody names are taken by their values in the first rows: fractions are numbers; texts
and booleans are categories; whole numbers are categories if they take few values, else numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.config import config
from weft.errors import WeftError, suggest

FEW_VALUES = 256  # whole numbers with no more distinct values than this are categories


@config
class EventColumns:
    """The columns of a file of events; `categories` and `numbers` left empty are found."""

    id: str = "id"  # whose event it is
    time: str = "time"  # when
    label: str | None = None  # what is to be predicted, the same in all events of a client
    until: str | None = None  # the date from which on nothing may be read, e.g. of an application
    categories: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()  # columns that are not read

    def __post_init__(self) -> None:
        named = [*self.keys, *self.features, *self.leave_out]
        for name in named:
            if named.count(name) > 1:
                raise WeftError(f"the column {name!r} is named for two things; name it once")

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that are not features."""
        return tuple(name for name in (self.id, self.time, self.label, self.until) if name)

    @property
    def features(self) -> tuple[str, ...]:
        """What a model reads of each event, besides its time."""
        return (*self.categories, *self.numbers)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.keys, *self.features)

    def check(self, present: Sequence[str], where: str) -> None:
        """Refuse names that the file does not have."""
        for name in (*self.names, *self.leave_out):
            if name not in present:
                raise WeftError(f"{where} has no column {name!r}; {suggest(name, present)}")

    def found(self, sample: Mapping[str, np.ndarray], where: str) -> EventColumns:
        """The same with all features named, by the values of the first rows."""
        self.check(list(sample), where)
        if self.features:
            return self
        categories, numbers = [], []
        for name, values in sample.items():
            if name not in (*self.keys, *self.leave_out):
                (categories if _is_category(values) else numbers).append(name)
        if not categories and not numbers:
            raise WeftError(
                f"{where} has no column besides {', '.join(self.keys)}: events need at least one "
                "that says what happened"
            )
        return EventColumns(
            id=self.id,
            time=self.time,
            label=self.label,
            until=self.until,
            categories=tuple(categories),
            numbers=tuple(numbers),
            leave_out=self.leave_out,
        )


def _is_category(values: Any) -> bool:
    if values.dtype.kind in "OUSb":
        return True
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    whole = values.dtype.kind in "iu" or bool((known == np.floor(known)).all())
    return whole and len(np.unique(known)) <= FEW_VALUES

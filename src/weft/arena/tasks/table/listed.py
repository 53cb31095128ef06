"""A table of files and their classes: sounds, pictures, or several kinds at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.arena.tasks.base import SPLITS
from weft.arena.tasks.table.splits import given_splits, made_splits
from weft.arena.tasks.table.streams import Bad, stream_table
from weft.errors import WeftError


class Shares(NamedTuple):
    """Of splits that are made."""

    test: float
    valid: float
    seed: int


class Listing(NamedTuple):
    """The classes and splits of some rows."""

    labels: np.ndarray  # (n,) int64
    names: tuple[str, ...]  # of the classes
    splits: np.ndarray  # (n,) places in SPLITS
    digest: str


def check_shares(task: Any) -> None:
    """Refuse shares of splits that leave nothing for training."""
    for name in ("valid_share", "test_share"):
        if not 0.0 < getattr(task, name) < 0.5:
            raise WeftError(f"{name} is above 0 and below 0.5; got {getattr(task, name)}")


def listed_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row stands, and its cells as text; only `optional` ones may be empty."""
    for item in stream_table(path, [*columns, *optional]):
        if isinstance(item, Bad):
            raise WeftError(f"{item}; repair the row or leave it out")
        line, row = item
        where = f"{path.name}, line {line:,}"
        names = [*columns, *optional]
        own = {name: "" if row[name] is None else str(row[name]).strip() for name in names}
        for name in columns:
            if not own[name]:
                raise WeftError(f"{where}: nothing in {name!r}; leave it out")
        yield where, own


def listing(
    contents: Sequence[bytes],
    labels: Sequence[str],
    splits: Sequence[str] | None,
    places: Sequence[str],
    shares: Shares,
    what: str,
    *,
    one_class: bool = False,
) -> Listing:
    """Classes by name, splits given or made; equal contents stay together.

    `places` say where each row stands, `what` it is, for errors. `one_class`: labels are not asked.
    """
    names = tuple(sorted(set(labels)))
    if len(names) < 2 and not one_class:
        raise WeftError(f"a task needs {what} of two classes or more; got {names}")
    numbers = np.array([names.index(label) for label in labels], dtype=np.int64)
    salt = shares.seed.to_bytes(16, "little", signed=True)
    keys = [blake2b(each, digest_size=12, salt=salt).digest() for each in contents]
    if splits is not None:
        found = given_splits(splits, keys, places)
    else:
        found = made_splits(keys, numbers, {"test": shares.test, "valid": shares.valid})
    for place, split in enumerate(SPLITS):
        if not (found == place).any():
            raise WeftError(f"the split {split} has no {what}; got {len(keys)} in all")
    digest = blake2b(b"".join(keys), digest_size=8).hexdigest()
    return Listing(numbers, names, found, digest)

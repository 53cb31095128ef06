"""A table in memory: tokens, classes and splits of all its rows, made once from the files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft.arena.data.examples import TokenRows
from weft.arena.tasks.base import SPLITS, Split
from weft.arena.tasks.table.numbers import Numbers, standard, tenths
from weft.arena.tasks.table.rows import (
    Usable,
    Wanted,
    check_share,
    class_names,
    class_numbers,
    typed_labels,
    usable_rows,
)
from weft.arena.tasks.table.splits import (
    LEFT_OUT,
    TRAIN,
    joined,
    leaks,
    made_splits,
    repeats,
    text_keys,
)
from weft.arena.tasks.table.streams import Bad
from weft.arena.tasks.table.tokens import BYTES, tokenised
from weft.errors import WeftError
from weft.models.usage.texts import global_spans

PERCENTILE = 95
ROUNDING = 64  # a length that is found is rounded up to a multiple of this


class Making(NamedTuple):
    """What is made of the rows."""

    tokens: str
    seed: int
    shares: tuple[tuple[Split, float], ...]  # of the splits that are not given
    keep_leaks: bool
    marks: bool  # whether tokens are marked as global
    global_after: str  # what ends with a global character


@dataclass(frozen=True, eq=False)
class Prepared:
    """All rows of a table as tokens, with their classes and splits."""

    rows: TokenRows
    second: TokenRows | None
    labels: np.ndarray  # (rows,) int64; of numbers, float32
    numbers: Numbers | None  # where the labels are numbers to predict
    splits: np.ndarray  # (rows,) places in SPLITS; LEFT_OUT: would leak
    names: tuple[str, ...]
    written: tuple[Any, ...]  # the names as the files have them: text, numbers or booleans
    files: tuple[str, ...]
    digest: str  # of the files' bytes
    given: tuple[Split, ...]  # splits that the user gave
    bad: tuple[Bad, ...]
    total: int  # rows of the files, bad ones included
    repeated: int  # rows whose text another row has too
    conflicts: int  # texts with several labels


def prepared(wanted: Wanted, making: Making) -> Prepared:
    """The table of these files; read again only where one of them has changed."""
    files = (*wanted.files(), *(() if making.tokens == BYTES else (making.tokens,)))
    return _prepare(wanted, making, tuple(_stamp(path) for path in files))


def usual_length(found: Prepared) -> int:
    """The 95th percentile of the lengths, rounded up."""
    length = int(np.ceil(np.percentile(sequence_lengths(found), PERCENTILE)))
    return -(-length // ROUNDING) * ROUNDING


def sequence_lengths(found: Prepared) -> np.ndarray:
    """Tokens of every text; of pairs, of both."""
    lengths = found.rows.lengths
    return lengths if found.second is None else np.concatenate((lengths, found.second.lengths))


@lru_cache(maxsize=4)
def _prepare(wanted: Wanted, making: Making, stamps: tuple[Any, ...]) -> Prepared:
    files = tuple(wanted.files())
    rows = usable_rows(wanted)
    ids, second = _tokens(rows, making)
    empty = {int(row) for each in (ids, second) for row in np.flatnonzero(each.lengths == 0)}
    if empty:
        rows.leave_out(empty, "the text has no tokens")
        ids, second = _tokens(rows, making)
    check_share(rows, wanted)
    names = () if wanted.number else class_names(rows.labels, wanted.most_classes)
    labels = tenths(rows.labels) if wanted.number else class_numbers(rows.labels, names)
    keys = text_keys(rows.texts, rows.seconds, making.seed)
    together = joined(keys, rows.groups) if rows.groups else keys
    units = "groups, counting those that share a text as one" if rows.groups else "texts"
    splits, given = _splits(together, labels, rows.splits, making, units)
    repeated, conflicts = repeats(keys, labels)
    numbers = standard(np.array(rows.labels, dtype=np.float64), splits) if wanted.number else None
    return Prepared(
        rows=ids,
        second=second if wanted.second else None,
        labels=labels if numbers is None else numbers.values,
        numbers=numbers,
        splits=splits,
        names=names,
        written=typed_labels(names, rows.label_kinds),
        files=tuple(os.path.basename(path) for path in files),
        digest=_digest(files),
        given=given,
        bad=tuple(rows.bad),
        total=rows.total,
        repeated=repeated,
        conflicts=conflicts,
    )


def _tokens(rows: Usable, making: Making) -> tuple[TokenRows, TokenRows]:
    """The ids of both texts of each row, and which of them are global."""
    tokens, after = making.tokens, making.global_after
    if not making.marks:
        return tokenised(rows.texts, tokens), tokenised(rows.seconds, tokens)
    leads = zip(rows.texts, rows.leads, strict=True)
    first = [global_spans(text, lead, after) for text, lead in leads]
    second = [global_spans(text, 0, after) for text in rows.seconds]
    return tokenised(rows.texts, tokens, first), tokenised(rows.seconds, tokens, second)


def _splits(
    keys: list[bytes],
    labels: np.ndarray,
    written: list[Split | None],
    making: Making,
    units: str,
) -> tuple[np.ndarray, tuple[Split, ...]]:
    """The split of each row, and which splits were given."""
    given: tuple[Split, ...] = tuple(split for split in SPLITS if split in written)
    splits = np.array([SPLITS.index(split or "train") for split in written], dtype=np.int8)
    if not making.keep_leaks:
        splits[leaks(keys, splits)] = LEFT_OUT
    train = np.flatnonzero(splits == TRAIN)
    wanting: dict[Split, float] = {
        split: share for split, share in making.shares if split not in given
    }
    splits[train] = made_splits([keys[row] for row in train], labels[train], wanting)
    for place, split in enumerate(SPLITS):
        if not (splits == place).any():
            raise WeftError(
                f"there is no row for {split}: {len(keys):,} rows of {len(set(keys)):,} {units}; "
                "a table has at least some of each class, or names its splits by split=, "
                "valid_file= and test_file="
            )
    return splits, given


def _stamp(path: str) -> tuple[str, int, int]:
    """What changes when a file does."""
    try:
        found = os.stat(path)
    except OSError as cause:
        raise WeftError(f"there is no file {path!r}; give the path of a table") from cause
    return os.path.abspath(path), found.st_mtime_ns, found.st_size


def _digest(files: Sequence[str]) -> str:
    """The first letters of the SHA-256 of all files, one after another."""
    found = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    return found.hexdigest()[:12]

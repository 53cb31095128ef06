"""Your own sounds as a task: a table of files and their classes.

    sounds(data='calls.csv', file='path', label='species')

Paths are relative to the table. wav, and flac and others with soundfile. Splits are made: each
class has its share of each, and equal recordings stay together. Or a column of the table says
train, valid or test; then a recording that is in two splits is refused with both rows, since it
would be a test of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.sound.base import SoundTask
from weft.arena.tasks.sound.examples import Recordings, joined
from weft.arena.tasks.table.listed import Shares, check_shares, listed_rows, listing
from weft.errors import WeftError
from weft.sound.inputs import SoundInput


class Listed(NamedTuple):
    """All recordings of a table, in its order."""

    sounds: Recordings
    names: tuple[str, ...]  # of the classes
    splits: np.ndarray  # (n,) places in SPLITS
    digest: str


@TASKS.register("sounds")
@dataclass(frozen=True, kw_only=True)
class Sounds(SoundTask):
    """Classify your own sounds, from a table of files."""

    data: str = ""  # the table
    file: str = "file"  # its column of paths
    label: str = "label"  # its column of classes
    split: str | None = None  # its column that says train, valid or test
    valid_share: float = 0.1  # where splits are made
    test_share: float = 0.2

    @property
    def text(self) -> str:
        """The column of files, also for prediction."""
        return self.file

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self)

    @property
    def listed(self) -> Listed:
        """All recordings; read again only if the table has changed."""
        if not self.data:
            raise WeftError("sounds are read from your files: sounds(data='table.csv')")
        if not Path(self.data).is_file():
            raise WeftError(f"there is no file {self.data!r}; give a table of files and labels")
        columns = (self.file, self.label, self.split)
        shares = Shares(self.test_share, self.valid_share, self.seed)
        return _listed(tuple(readers.stamp(Path(self.data))), columns, self.reading, shares)

    @property
    def classes(self) -> int:
        """Distinct labels."""
        return len(self.listed.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as the table names them."""
        return self.listed.names

    @property
    def source(self) -> str:
        """The table, and a digest by which a changed recording is noticed."""
        found = self.listed
        how = f"split by {self.split}" if self.split else f"splits made, seed {self.seed}"
        return (
            f"{Path(self.data).name} (digest {found.digest}): {len(found.splits):,} sounds at "
            f"{self.rate:,} Hz, {how}"
        )

    def recordings(self, split: Split) -> Recordings:
        """Recordings of a split, in the order of the table."""
        found = self.listed
        return found.sounds.chosen(np.flatnonzero(found.splits == SPLITS.index(split)))


@lru_cache(maxsize=4)
def _listed(
    stamp: tuple, columns: tuple[str, str, str | None], reading: SoundInput, shares: Shares
) -> Listed:
    path, (file, label, split) = Path(stamp[0]), columns
    parts, labels, splits, places = [], [], [], []
    for where, row in listed_rows(path, [file, label], [split] if split else []):
        try:
            parts.append(reading.read(path.parent / row[file]))
        except WeftError as cause:
            raise WeftError(f"{where}: {cause}") from cause
        labels.append(row[label])
        splits.append(row[split] if split else "")
        places.append(where)
    contents = [part.tobytes() for part in parts]
    found = listing(contents, labels, splits if split else None, places, shares, "sounds")
    return Listed(joined(parts, found.labels), found.names, found.splits, found.digest)

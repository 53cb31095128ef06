"""Your own sounds as a task: a table of files and their classes.

    sounds(data='calls.csv', file='path', label='species')

Paths are relative to the table. wav, and flac and others with soundfile. Splits are made: each
class has its share of each, and equal recordings stay together. Or a column of the table says
train, valid or test; then a recording that is in two splits is refused with both rows, since it
would be a test of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.sound.base import SoundTask
from weft.arena.tasks.sound.examples import Recordings, joined
from weft.arena.tasks.table.splits import given_splits, made_splits
from weft.arena.tasks.table.streams import Bad, stream_table
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
        for name in ("valid_share", "test_share"):
            if not 0.0 < getattr(self, name) < 0.5:
                raise WeftError(f"{name} is above 0 and below 0.5; got {getattr(self, name)}")

    @property
    def listed(self) -> Listed:
        """All recordings; read again only if the table has changed."""
        if not self.data:
            raise WeftError("sounds are read from your files: sounds(data='table.csv')")
        if not Path(self.data).is_file():
            raise WeftError(f"there is no file {self.data!r}; give a table of files and labels")
        columns = (self.file, self.label, self.split)
        shares = (self.test_share, self.valid_share, self.seed)
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
    stamp: tuple,
    columns: tuple[str, str, str | None],
    reading: SoundInput,
    shares: tuple[float, float, int],
) -> Listed:
    path = Path(stamp[0])
    parts, labels, splits, lines = [], [], [], []
    for line, file, label, split in _rows(path, *columns):
        try:
            parts.append(reading.read(path.parent / file))
        except WeftError as cause:
            raise WeftError(f"{path.name}, line {line:,}: {cause}") from cause
        labels.append(label)
        splits.append(split)
        lines.append(line)
    names = tuple(sorted(set(labels)))
    if len(names) < 2:
        raise WeftError(f"a task needs sounds of two classes or more; {path.name} has {names}")
    numbers = np.array([names.index(label) for label in labels], dtype=np.int64)
    test_share, valid_share, seed = shares
    salt = seed.to_bytes(16, "little", signed=True)
    keys = [blake2b(part.tobytes(), digest_size=12, salt=salt).digest() for part in parts]
    if columns[2]:
        found = given_splits(splits, keys, [f"{path.name}, line {line:,}" for line in lines])
    else:
        found = made_splits(keys, numbers, {"test": test_share, "valid": valid_share})
    for place, split in enumerate(SPLITS):
        if not (found == place).any():
            raise WeftError(f"the split {split} has no sounds; got {len(parts)} in all")
    digest = blake2b(b"".join(keys), digest_size=8).hexdigest()
    return Listed(joined(parts, numbers), names, found, digest)


def _rows(
    path: Path, file: str, label: str, split: str | None
) -> Iterator[tuple[int, str, str, str]]:
    """Line, file, label and split of each row."""
    columns = [name for name in (file, label, split) if name]
    for item in stream_table(path, columns):
        if isinstance(item, Bad):
            raise WeftError(f"{item}; repair the row or leave it out")
        line, row = item
        own = {name: "" if row[name] is None else str(row[name]).strip() for name in columns}
        for name in (file, label):
            if not own[name]:
                raise WeftError(f"{path.name}, line {line:,}: nothing in {name!r}; leave it out")
        yield line, own[file], own[label], own[split] if split else ""

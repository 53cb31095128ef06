"""Your own sequences as a task: FASTA files, one for each class, or a table with two columns.

    dna(data=['promoters.fa.gz', 'others.fa.gz'])                     the file's name is the label
    dna(data='sequences.csv', sequence='bases', label='kind')

Splits are made: each class has its share of each, and equal sequences, or one and the other strand
of one, stay together. Or a column of the table says train, valid or test; then a sequence that is
in two splits is refused with both records, since it would be a test of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.dna.base import DnaTask
from weft.arena.tasks.table.splits import given_splits, made_splits
from weft.arena.tasks.table.streams import Bad, stream_table
from weft.dna.bases import Kmers, bases
from weft.dna.fasta import is_fasta, read_fasta
from weft.errors import WeftError

_BOTH_STRANDS = Kmers()


class Sequence(NamedTuple):
    """A sequence, its class by name, where it stands, and its split if that is given."""

    bases: np.ndarray
    label: str
    where: str
    split: str = ""


class Labelled(NamedTuple):
    """All sequences of a task, in the order of the files."""

    sequences: tuple[np.ndarray, ...]
    labels: np.ndarray  # (n,) int64
    names: tuple[str, ...]  # of the classes
    splits: np.ndarray  # (n,) places in SPLITS
    digest: str


@TASKS.register("dna")
@dataclass(frozen=True, kw_only=True)
class Dna(DnaTask):
    """Classify your own DNA, from FASTA files or a table."""

    data: str | tuple[str, ...] = ""  # FASTA files, one for each class, or a table
    sequence: str = "sequence"  # the table's column of bases
    label: str = "label"  # its column of classes
    split: str | None = None  # its column that says train, valid or test
    length: int = 0  # longest sequence in tokens; 0: the longest there is
    valid_share: float = 0.1  # where splits are made
    test_share: float = 0.2

    @property
    def text(self) -> str:
        """The column of sequences, also for prediction."""
        return self.sequence

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("valid_share", "test_share"):
            if not 0.0 < getattr(self, name) < 0.5:
                raise WeftError(f"{name} is above 0 and below 0.5; got {getattr(self, name)}")
        if self.length < 0:
            raise WeftError(f"length is 0 or more; got {self.length}")
        if self.data and not self.length:
            longest = max(self.kmers.count(len(each)) for each in self.prepared.sequences)
            object.__setattr__(self, "length", max(1, longest))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read."""
        given = (self.data,) if isinstance(self.data, str) else self.data
        if not any(given):
            raise WeftError("DNA is read from your files: dna(data=['promoters.fa', 'others.fa'])")
        for path in given:
            if not Path(path).is_file():
                raise WeftError(f"there is no file {path!r}; give FASTA files or a table")
        return tuple(map(Path, given))

    @property
    def prepared(self) -> Labelled:
        """All sequences; read again only if a file has changed."""
        return _prepared(
            tuple(tuple(readers.stamp(path)) for path in self.files),
            (self.sequence, self.label, self.split),
            (self.test_share, self.valid_share, self.seed),
        )

    @property
    def classes(self) -> int:
        """Distinct labels."""
        return len(self.prepared.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as the files name them."""
        return self.prepared.names

    @property
    def source(self) -> str:
        """The files, and a digest by which a changed file is noticed."""
        names = ", ".join(path.name for path in self.files)
        found = self.prepared
        how = f"split by {self.split}" if self.split else f"splits made, seed {self.seed}"
        return f"{names} (digest {found.digest}): {len(found.labels):,} sequences, {how}"

    def load(self, split: Split) -> Examples:
        """One split, always the same for the same files and settings."""
        return examples_of(self.prepared, self.kmers, self.length, split)


def examples_of(found: Labelled, kmers: Kmers, length: int, split: Split) -> Examples:
    """The sequences of a split as tokens."""
    chosen = np.flatnonzero(found.splits == SPLITS.index(split))
    rows = TokenRows.of([kmers.tokens(found.sequences[i]) for i in chosen])
    return Examples(rows, length, labels=found.labels[chosen])


@lru_cache(maxsize=4)
def _prepared(
    stamps: tuple[tuple, ...], columns: tuple[str, str, str | None], split: tuple[float, float, int]
) -> Labelled:
    files = [Path(stamp[0]) for stamp in stamps]
    found = [each for path in files for each in _sequences(path, *columns)]
    return labelled(found, *split)


def labelled(found: list[Sequence], test_share: float, valid_share: float, seed: int) -> Labelled:
    """Sequences with their classes and splits."""
    names = tuple(sorted({each.label for each in found}))
    if len(names) < 2:
        raise WeftError(
            f"a task needs sequences of two classes or more; got {names}: give a FASTA file for "
            "each class, or a table with a column of labels"
        )
    labels = np.array([names.index(each.label) for each in found], dtype=np.int64)
    keys = [strand_key(each.bases, seed) for each in found]
    if any(each.split for each in found):
        places = [each.where for each in found]
        also = ", or its other strand"
        splits = given_splits([each.split for each in found], keys, places, also)
    else:
        splits = made_splits(keys, labels, {"test": test_share, "valid": valid_share})
    for place, split in enumerate(SPLITS):
        if not (splits == place).any():
            raise WeftError(f"the split {split} has no sequences; got {len(found)} in all")
    digest = blake2b(b"".join(keys), digest_size=8).hexdigest()
    return Labelled(tuple(each.bases for each in found), labels, names, splits, digest)


def strand_key(found: np.ndarray, seed: int = 0) -> bytes:
    """The same for a sequence and its other strand."""
    other = _BOTH_STRANDS.reverse_complement(found).astype(np.uint8)
    salt = seed.to_bytes(16, "little", signed=True)
    return blake2b(min(found.tobytes(), other.tobytes()), digest_size=12, salt=salt).digest()


def _sequences(path: Path, sequence: str, label: str, split: str | None) -> Iterator[Sequence]:
    if is_fasta(path):
        name = path.name.split(".")[0]
        for record in read_fasta(path):
            yield Sequence(bases(record.sequence, record.where), name, record.where)
        return
    columns = [name for name in (sequence, label, split) if name]
    for item in stream_table(path, columns):
        if isinstance(item, Bad):
            raise WeftError(f"{item}; repair the row or leave it out")
        line, row = item
        where = f"{path.name}, line {line:,}"
        own = {name: "" if row[name] is None else str(row[name]).strip() for name in columns}
        if not own[label]:
            raise WeftError(f"{where}: missing label in {label!r}; leave the row out")
        yield Sequence(bases(own[sequence], where), own[label], where, own[split] if split else "")

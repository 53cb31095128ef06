"""FASTA files, plain or .gz: records of a name and a sequence, one at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from weft.errors import WeftError

ENDINGS = (".fa", ".fasta", ".fna", ".fas")


class Record(NamedTuple):
    """A sequence of a file."""

    name: str  # the words after >
    sequence: str
    where: str  # file, line of the name, name: for people


def is_fasta(path: Path) -> bool:
    """Told by the name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in ENDINGS


def read_fasta(path: Path) -> Iterator[Record]:
    """The records of a file, in order; an empty one is refused with its name."""
    if not path.is_file():
        raise WeftError(f"there is no FASTA file {str(path)!r}")
    name, first, parts = None, 0, []
    for line, text in _lines(path):
        if text.startswith(">"):
            if name is not None:
                yield _record(path, first, name, parts)
            name, first, parts = text[1:].strip(), line, []
        elif text and not text.startswith(";"):
            if name is None:
                raise WeftError(
                    f"{path}, line {line}: a FASTA file begins with a name, '>chr1'; got {text:.30}"
                )
            parts.append("".join(text.split()))
    if name is None:
        raise WeftError(f"{path} holds no records; each begins with a line '>name'")
    yield _record(path, first, name, parts)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for line, text in enumerate(file, start=1):
                yield line, text.strip()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as cause:
        raise WeftError(f"{path} cannot be read as FASTA: {cause}; copy it again") from cause


def _record(path: Path, line: int, name: str, parts: list[str]) -> Record:
    where = f"{path.name}, line {line:,} (>{name:.40})"
    sequence = "".join(parts)
    if not sequence:
        raise WeftError(f"{where}: the record has no sequence; leave it out")
    return Record(name, sequence, where)

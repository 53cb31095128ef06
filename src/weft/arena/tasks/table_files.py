"""Tables on disk: CSV, JSON lines and Parquet. Files are read, never written.

A reader gives the wanted columns, the line on which each row begins (in Parquet: the number of the
row), and the rows that are no rows: broken quotes, a wrong number of columns, invalid JSON. Text
is decoded with "surrogateescape", so that bytes that do not decode spoil their own row only; who
uses a text finds them when it does not encode.

CSV has a first line of names; the delimiter is the one of , ; tab | that makes the wanted names
appear in it. Lines count from 1, the names included; a quoted field may span several. Blank lines
are no rows. CSV and JSON lines may be compressed: .gz, .bz2, .xz.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from weft.errors import WeftError
from weft.registry import suggest

DELIMITERS = (",", ";", "\t", "|")
LONGEST_FIELD = 2**31 - 1  # the csv module stops at 131,072 characters otherwise
_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used, where it begins, and why."""

    file: str
    line: int
    reason: str
    lines: int = 1  # as many rows are counted: an open quote swallows the lines after it

    def __str__(self) -> str:
        return f"{self.file}, line {self.line:,}: {self.reason}"


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

    def refuse(self, line: int, reason: str, lines: int = 1) -> None:
        """One row that is none."""
        self.bad.append(Bad(self.file, line, reason, lines))


def read_table(path: str | Path, columns: Sequence[str], encoding: str = "utf-8") -> Contents:
    """The wanted columns of a file of any known kind."""
    path = Path(path)
    if not path.is_file():
        raise WeftError(f"there is no file {str(path)!r}; give the path of a table")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _OPENERS:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in READERS:
        raise WeftError(
            f"a table's kind is told by its name: {', '.join(READERS)}, the text kinds also with "
            f"{', '.join(_OPENERS)}; got {path.name!r}, rename it or link to it"
        )
    found = Contents(path.name, {name: [] for name in dict.fromkeys(columns)})
    READERS[kind](path, found, encoding)
    return found


def read_csv(path: Path, found: Contents, encoding: str) -> None:
    """Comma-separated values, by Python's csv module in its strict mode."""
    with _text(path, encoding, newline="") as file, _long_fields():
        names, delimiter = _header(path, file.readline(), list(found.columns))
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        next(reader)
        places = [names.index(name) for name in found.columns]
        for line, record in _records(reader, found):
            if len(record) == len(names):
                found.add(line, [record[place] for place in places])
            elif record:
                found.refuse(line, f"columns: {len(record)} instead of {len(names)}")


def read_json_lines(path: Path, found: Contents, encoding: str) -> None:
    """One JSON object on each line."""
    keys: dict[str, None] = {}
    with _text(path, encoding, newline="\n") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as cause:
                if not found.lines and text.lstrip().startswith("["):
                    raise WeftError(_array_message(path)) from cause
                found.refuse(line, f"invalid JSON: {cause}")
                continue
            if not isinstance(row, dict):
                if isinstance(row, list) and not found.lines:
                    raise WeftError(_array_message(path))
                found.refuse(line, f"a row is a JSON object; got {text.strip()[:40]!r}")
                continue
            keys.update(dict.fromkeys(row))
            found.add(line, [row.get(name) for name in found.columns])
    if found.lines:
        _check_names(path, list(keys), list(found.columns))


def read_parquet(path: Path, found: Contents, encoding: str) -> None:
    """Parquet; `line` is the number of the row, from 1."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as cause:
        raise WeftError(
            f"reading {path.name} needs pyarrow: pip install 'weft[data]', or save the table as "
            "CSV or JSON lines"
        ) from cause
    try:
        with parquet.ParquetFile(path) as file:
            _check_names(path, file.schema_arrow.names, list(found.columns))
            table = file.read(columns=list(found.columns))
        for name, values in found.columns.items():
            values.extend(_values(table.column(name), pyarrow))
    except (pyarrow.ArrowException, OSError) as cause:
        raise WeftError(f"{path} cannot be read as Parquet: {cause}") from cause
    found.lines.extend(range(1, table.num_rows + 1))


READERS: dict[str, Callable[[Path, Contents, str], None]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_lines,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}


def _values(column: Any, pyarrow: Any) -> list[Any]:
    """A column's values; text that does not decode comes as bytes."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return column.cast(pyarrow.large_binary()).to_pylist()


@contextmanager
def _text(path: Path, encoding: str, newline: str) -> Iterator[TextIO]:
    """The file as text; what is wrong with the whole of it becomes one clear error."""
    opener = _OPENERS.get(path.suffix.lower(), open)
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    try:
        with opener(path, "rb") as raw:
            mark = raw.read(2)
        if codec == "utf-8-sig" and mark in (b"\xff\xfe", b"\xfe\xff"):
            raise WeftError(f"{path} begins with the mark of UTF-16; give encoding='utf-16'")
        with opener(path, "rt", encoding=codec, errors="surrogateescape", newline=newline) as file:
            yield file
    except UnicodeError as cause:
        raise WeftError(f"{path} is no {encoding} text: {cause}; give its encoding=") from cause
    except LookupError as cause:
        raise WeftError(f"there is no encoding {encoding!r}; for example 'utf-8'") from cause
    except _BROKEN as cause:
        raise WeftError(f"{path} cannot be read: {cause}") from cause


@contextmanager
def _long_fields() -> Iterator[None]:
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _records(reader: Any, found: Contents) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line it begins on; records with broken quotes are refused."""
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as cause:
            lines = max(1, reader.line_num - start + 1)
            until = f" (read up to line {reader.line_num:,})" if lines > 1 else ""
            found.refuse(start, f"broken CSV: {cause}{until}", lines)
            continue
        yield start, record


def _header(path: Path, line: str, wanted: list[str]) -> tuple[list[str], str]:
    """The names of the columns, and the delimiter between them."""
    if not line.strip():
        raise WeftError(f"{path} begins with an empty line; CSV begins with the columns' names")
    split = {mark: _names(line, mark) for mark in DELIMITERS}
    best = max(DELIMITERS, key=lambda mark: (len(set(wanted) & set(split[mark])), len(split[mark])))
    _check_names(path, split[best], wanted)
    return split[best], best


def _names(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter))]


def _check_names(path: Path, names: list[str], wanted: list[str]) -> None:
    for name in wanted:
        if name not in names:
            raise WeftError(f"{path} has no column {name!r}; {suggest(name, names)}")
        if names.count(name) > 1:
            raise WeftError(f"{path} has {names.count(name)} columns {name!r}; names are unique")


def _array_message(path: Path) -> str:
    return (
        f"{path} is one JSON array; JSON lines has one object on each line and no brackets "
        "around them (jq -c '.[]' writes it so)"
    )

"""Tables row by row: CSV, JSON lines and Parquet. Files are read, never written.

A stream gives each row as a dict with the line on which it begins (in Parquet: the number of the
row), and the rows that cannot be read as `Bad`: broken quotes, a wrong number of columns, invalid
JSON. Text is decoded with "surrogateescape", so that bytes that do not decode spoil their own row
only; who uses a text finds them when it does not encode.

CSV has a first line of names; the delimiter is the one of , ; tab | that makes the wanted names
appear in it. Lines count from 1, the names included; a quoted field may span several. Blank lines
are left out. CSV and JSON lines may be compressed: .gz, .bz2, .xz; the file "-" is standard input.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from weft.arena.tasks.table.unpacking import OPENERS, open_unpacked
from weft.errors import WeftError
from weft.registry import suggest

DELIMITERS = (",", ";", "\t", "|")
LONGEST_FIELD = 2**31 - 1  # the csv module stops at 131,072 characters otherwise
STDIN = "-"
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)
_PARQUET_ROWS = 1024  # read at once


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used, where it begins, and why."""

    file: str
    line: int
    reason: str
    lines: int = 1  # as many rows are counted: an open quote swallows the lines after it

    def __str__(self) -> str:
        return f"{self.file}, line {self.line:,}: {self.reason}"


Item = tuple[int, dict[str, Any]] | Bad


def stream_table(
    path: str | Path, columns: Sequence[str], encoding: str = "utf-8", *, every: bool = False
) -> Iterator[Item]:
    """The rows of a file of any known kind, with the wanted columns, or with `every` column."""
    path = Path(path)
    if str(path) != STDIN and not path.is_file():
        raise WeftError(f"there is no file {str(path)!r}; give the path of a table")
    return STREAMS[kind_of(path)](path, list(dict.fromkeys(columns)), encoding, every)


def kind_of(path: Path) -> str:
    """How a table is read, told by its name: ".csv", ".jsonl", ".parquet", ..."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in OPENERS:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in STREAMS:
        raise WeftError(
            f"a table's kind is told by its name: {', '.join(STREAMS)}, the text kinds also with "
            f"{', '.join(OPENERS)}; got {path.name!r}, rename it or link to it"
        )
    return kind


def stream_csv(path: Path, columns: list[str], encoding: str, every: bool) -> Iterator[Item]:
    """Comma-separated values, by Python's csv module in its strict mode."""
    with open_text(path, encoding, newline="") as file:
        yield from csv_rows(path, file, columns, every)


def csv_rows(path: Path, file: Any, columns: list[str], every: bool) -> Iterator[Item]:
    """The rows of CSV, from lines."""
    lines = iter(file)
    with _long_fields():
        first = next(lines, "")
        names, delimiter = _header(path, first, columns)
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        try:
            next(reader)
        except csv.Error as cause:
            raise WeftError(f"{path} begins with names that are broken CSV: {cause}") from cause
        wanted = names if every else columns
        places = [names.index(name) for name in wanted]
        for item in _records(reader, path.name):
            if isinstance(item, Bad):
                yield item
            elif len(item[1]) == len(names):
                yield item[0], {name: item[1][at] for name, at in zip(wanted, places, strict=True)}
            elif item[1]:
                yield Bad(path.name, item[0], f"columns: {len(item[1])} instead of {len(names)}")


def stream_json_lines(path: Path, columns: list[str], encoding: str, every: bool) -> Iterator[Item]:
    """One JSON object on each line."""
    with open_text(path, encoding, newline="\n") as file:
        yield from json_rows(path, file, columns, every)


def json_rows(path: Path, file: Any, columns: list[str], every: bool) -> Iterator[Item]:
    """The rows of JSON lines; a key that no row has is an error at the end."""
    keys: dict[str, None] = {}
    good = False
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as cause:
            if not good and text.lstrip().startswith("["):
                raise WeftError(_array_message(path)) from cause
            yield Bad(path.name, line, f"invalid JSON: {cause}")
            continue
        if not isinstance(row, dict):
            if isinstance(row, list) and not good:
                raise WeftError(_array_message(path))
            yield Bad(path.name, line, f"a row is a JSON object; got {text.strip()[:40]!r}")
            continue
        good = True
        keys.update(dict.fromkeys(row))
        yield line, row if every else {name: row.get(name) for name in columns}
    if good:
        check_names(path, list(keys), columns)


def stream_parquet(path: Path, columns: list[str], encoding: str, every: bool) -> Iterator[Item]:
    """Parquet; `line` is the number of the row, from 1."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as cause:
        raise WeftError(
            f"reading {path.name} needs pyarrow: pip install pyarrow, or save the table as "
            "CSV or JSON lines"
        ) from cause
    line = 0
    try:
        # What pyarrow reads ahead it would keep: as much memory as the file takes on disk.
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            check_names(path, file.schema_arrow.names, columns)
            wanted = file.schema_arrow.names if every else columns
            for batch in file.iter_batches(_PARQUET_ROWS, columns=wanted):
                values = [_values(batch.column(name), pyarrow) for name in wanted]
                for row in zip(*values, strict=True):
                    line += 1
                    yield line, dict(zip(wanted, row, strict=True))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as cause:  # names are decoded, too
        raise WeftError(f"{path} cannot be read as Parquet: {cause}") from cause


STREAMS: dict[str, Callable[[Path, list[str], str, bool], Iterator[Item]]] = {
    ".csv": stream_csv,
    ".tsv": stream_csv,
    ".txt": stream_csv,
    ".jsonl": stream_json_lines,
    ".ndjson": stream_json_lines,
    ".json": stream_json_lines,
    ".parquet": stream_parquet,
    ".pq": stream_parquet,
}


def _values(column: Any, pyarrow: Any) -> list[Any]:
    """A column's values; text that does not decode comes as bytes."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return column.cast(pyarrow.large_binary()).to_pylist()


@contextmanager
def open_text(path: Path, encoding: str, newline: str) -> Iterator[TextIO]:
    """The file as text; what is wrong with the whole of it becomes one clear error."""
    if str(path) == STDIN:
        yield sys.stdin
        return
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    try:
        with open_unpacked(path) as raw:
            mark = raw.read(2)
        if codec == "utf-8-sig" and mark in (b"\xff\xfe", b"\xfe\xff"):
            raise WeftError(f"{path} begins with the mark of UTF-16; give encoding='utf-16'")
        how = ("surrogateescape", newline)
        with open_unpacked(path) as raw, io.TextIOWrapper(raw, codec, *how) as file:
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


def _records(reader: Any, file: str) -> Iterator[tuple[int, list[str]] | Bad]:
    """Each record with the line it begins on; records with broken quotes are bad."""
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as cause:
            lines = max(1, reader.line_num - start + 1)
            until = f" (read up to line {reader.line_num:,})" if lines > 1 else ""
            yield Bad(file, start, f"broken CSV: {cause}{until}", lines)
            continue
        yield start, record


def _header(path: Path, line: str, wanted: list[str]) -> tuple[list[str], str]:
    """The names of the columns, and the delimiter between them."""
    if not line.strip():
        raise WeftError(f"{path} begins with an empty line; CSV begins with the columns' names")
    split = {mark: _names(line, mark) for mark in DELIMITERS}
    best = max(DELIMITERS, key=lambda mark: (len(set(wanted) & set(split[mark])), len(split[mark])))
    check_names(path, split[best], wanted)
    return split[best], best


def _names(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter))]


def check_names(path: Path, names: list[str], wanted: list[str]) -> None:
    """Refuse a table that lacks a wanted column, or has it twice."""
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

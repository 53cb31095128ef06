"""Files of events in pieces of rows: CSV (also .gz) and Parquet, by pyarrow. Never all in memory.

A piece holds whole columns as numpy arrays: ids and categories as arrow dictionaries, numbers as
float64 with NaN where missing, times as float64 days since 1970 with NaN where missing.
"""

from __future__ import annotations

import glob
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.events.columns import EventColumns

ROWS = 1 << 17  # of a piece
PARQUET = (".parquet", ".pq")
SAMPLE = 20_000  # rows that tell what a column holds
_CSV_BLOCK = 1 << 22  # bytes; pyarrow reads a dozen of them ahead
_FIRST_BLOCK = 1 << 22  # of a CSV file whose columns are not known yet
SECONDS = 86_400.0  # of a day
# pyarrow would keep what it has read of a Parquet file: as much memory as the file takes on disk.
STREAMED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
EARLIEST = 1e8  # whole numbers from here on are seconds since 1970, smaller ones are days


@dataclass(frozen=True)
class Coded:
    """A column as codes into its distinct values; -1 where missing."""

    codes: np.ndarray  # (rows,) int32
    values: tuple[str, ...]


@dataclass(frozen=True)
class EventPiece:
    """Some rows of a file, in order."""

    file: str
    first: int  # the number of the first row in the file, from 1; names are not counted
    ids: Coded
    times: np.ndarray  # (rows,) days
    until: np.ndarray | None  # (rows,) days
    labels: Coded | None
    categories: dict[str, Coded]
    numbers: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.times)

    def where(self, row: int) -> str:
        """The place of a row, for people."""
        return f"{self.file}, row {self.first + int(row):,}"


def event_files(data: str | Sequence[str]) -> list[Path]:
    """The files that paths with * and ? stand for."""
    given = [data] if isinstance(data, str) else list(data)
    found = [Path(path) for pattern in given for path in sorted(glob.glob(pattern)) or [pattern]]
    for path in found:
        if not path.is_file():
            raise WeftError(f"there is no file {str(path)!r}; give the path of a table of events")
    return found


def names_of(path: Path) -> list[str]:
    """The columns of a file."""
    for batch in _batches(path, None, 1):
        return list(batch.schema.names)
    return []


def sample(path: Path) -> dict[str, np.ndarray]:
    """The first rows of all columns, to see what they hold."""
    for batch in _batches(path, None, min(ROWS, SAMPLE)):
        return {name: _plain(batch.column(name)) for name in batch.schema.names}
    raise WeftError(f"{path.name} holds no rows")


def pieces(
    path: Path, columns: EventColumns, spool: Path | None = None
) -> Generator[EventPiece, None, None]:
    """All rows of a file, its wanted columns alone.

    Text is parsed once: with `spool`, the rows of a CSV file are also written there, in the form
    that is read ever after.
    """
    first, writer, kept = 1, None, spool is not None and spool.exists()
    batches = _spooled(spool) if kept and spool else _batches(path, columns, ROWS)
    try:
        for batch in batches:
            if spool is not None and not kept and path.suffix.lower() not in PARQUET:
                writer = writer or _writer(spool, batch.schema)
                writer.write_batch(batch)
            yield _piece(path.name, first, batch, columns)
            first += len(batch)
    finally:
        if writer is not None:
            writer.close()


def _writer(path: Path, schema: Any) -> Any:
    from pyarrow import ipc

    return ipc.new_stream(path, schema)  # a file would hold one dictionary for each column


def _spooled(path: Path) -> Iterator[Any]:
    from pyarrow import OSFile, ipc

    with OSFile(str(path)) as file:  # pages of a memory map would count as memory of the process
        yield from ipc.open_stream(file)


def _piece(file: str, first: int, batch: Any, columns: EventColumns) -> EventPiece:
    def at(row: int) -> str:
        return f"{file}, row {first + row:,}"

    until = columns.until
    return EventPiece(
        file=file,
        first=first,
        ids=_coded(batch.column(columns.id)),
        times=_days(batch.column(columns.time), columns.time, at),
        until=None if until is None else _days(batch.column(until), until, at),
        labels=None if columns.label is None else _coded(batch.column(columns.label)),
        categories={name: _coded(batch.column(name)) for name in columns.categories},
        numbers={name: _numbers(batch.column(name), name, at) for name in columns.numbers},
    )


def _batches(path: Path, columns: EventColumns | None, rows: int) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError as cause:
        raise WeftError(
            f"reading events from {path.name} needs pyarrow: pip install pyarrow"
        ) from cause
    names = None if columns is None else list(dict.fromkeys(columns.names))
    try:
        if path.suffix.lower() in PARQUET:
            with parquet.ParquetFile(path, **STREAMED) as file:
                if columns is not None:
                    columns.check(file.schema_arrow.names, path.name)
                yield from file.iter_batches(batch_size=rows, columns=names)
            return
        # Text stays text where a column's kind is known: a code 007 keeps its zeros.
        texts = [] if columns is None else [columns.id, columns.label, *columns.categories]
        coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        kinds = {name: coded for name in texts if name}
        kinds |= {} if columns is None else {name: pyarrow.float64() for name in columns.numbers}
        convert = csv.ConvertOptions(
            column_types=kinds, include_columns=names or [], strings_can_be_null=True
        )
        parse = csv.ParseOptions(delimiter="\t" if ".tsv" in path.suffixes else ",")
        block = csv.ReadOptions(block_size=_FIRST_BLOCK if columns is None else _CSV_BLOCK)
        header = _header(path, parse)  # names that do not decode are refused here
        if columns is not None:
            columns.check(header, path.name)
        options = {"parse_options": parse, "convert_options": convert}
        try:
            with csv.open_csv(path, read_options=block, **options) as reader:
                for batch in reader:
                    yield from (batch.slice(at, rows) for at in range(0, len(batch), rows))
        except pyarrow.ArrowInvalid:
            _name_the_row(path, options)
            raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as cause:  # names are decoded, too
        raise WeftError(
            f"{path.name} is not a table of events that can be read: {str(cause).splitlines()[0]}; "
            "events are CSV with a first line of names, or Parquet"
        ) from cause


def _name_the_row(path: Path, options: dict[str, Any]) -> None:
    """Read a file that has an error once more: by one thread, errors say their row."""
    from pyarrow import csv

    serial = csv.ReadOptions(block_size=_CSV_BLOCK, use_threads=False)
    with csv.open_csv(path, read_options=serial, **options) as reader:
        for _ in reader:
            pass


def _header(path: Path, parse: Any) -> list[str]:
    from pyarrow import csv

    with csv.open_csv(path, parse_options=parse) as reader:
        return list(reader.schema.names)


def _coded(column: Any) -> Coded:
    """Distinct values as texts, in the order of their appearance."""
    import pyarrow
    from pyarrow import compute

    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    values = column.dictionary.to_pylist()
    codes = compute.fill_null(column.indices.cast(pyarrow.int32()), -1).to_numpy(False)
    missing = [place for place, value in enumerate(values) if value != value]  # NaN
    if missing:
        codes = np.where(np.isin(codes, missing), -1, codes)
    return Coded(codes, tuple(map(_text, values)))


def _text(value: Any) -> str:
    """One text for a value, whatever file holds it: 3.0 of a column with gaps is 3."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _numbers(column: Any, name: str, at: Any) -> np.ndarray:
    import pyarrow
    from pyarrow import compute

    kind = column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        try:
            column = compute.cast(_trimmed(column), pyarrow.float64())
        except pyarrow.ArrowInvalid:
            row = next(i for i, text in enumerate(column.to_pylist()) if not _is_number(text))
            raise WeftError(
                f"{at(row)}: {name} is a number; got {column[row].as_py()!r}. Mend the row, or "
                f"name {name} among the categories"
            ) from None
    elif not _is_numeric(kind):
        raise WeftError(f"{at(0)}: {name} is a number; the file holds {kind}: name it a category")
    return column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)


def _trimmed(column: Any) -> Any:
    from pyarrow import compute

    return compute.call_function("utf8_trim_whitespace", [column])


def _is_number(text: str | None) -> bool:
    try:
        float("nan" if text is None else text)
    except ValueError:
        return False
    return True


def _is_time(text: str | None) -> bool:
    import pyarrow
    from pyarrow import compute

    try:
        compute.cast(pyarrow.array([text], pyarrow.string()), pyarrow.timestamp("us"))
    except pyarrow.ArrowInvalid:
        return False
    return True


def _is_numeric(kind: Any) -> bool:
    import pyarrow

    types = pyarrow.types
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    )


def _days(column: Any, name: str, at: Any) -> np.ndarray:
    """Dates, timestamps, or numbers: days, or seconds where they are large."""
    import pyarrow
    from pyarrow import compute

    types, kind = pyarrow.types, column.type
    if types.is_string(kind) or types.is_large_string(kind):
        try:
            column = compute.cast(column, pyarrow.timestamp("us"))
        except pyarrow.ArrowInvalid:
            texts = column.to_pylist()
            if next((_is_number(text) for text in texts if text), True):
                return _number_days(_numbers(column, name, at))
            row = next(i for i, text in enumerate(texts) if not _is_time(text))
            raise WeftError(
                f"{at(row)}: {name} is a date or a time such as 2024-07-01 12:30; got "
                f"{texts[row]!r}. Mend the row, or leave it out"
            ) from None
        kind = column.type
    if types.is_timestamp(kind) or types.is_date(kind):
        whole = column.cast(pyarrow.timestamp("us")).cast(pyarrow.int64())
        # Not safe: past the year 2255, such as 9999-12-31 for no end, a day loses microseconds.
        micro = compute.cast(whole, pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return micro / (1e6 * SECONDS)
    if not _is_numeric(kind):
        raise WeftError(f"{at(0)}: {name} is a date, a time or a number; the file holds {kind}")
    return _number_days(column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False))


def _number_days(values: np.ndarray) -> np.ndarray:
    known = values[np.isfinite(values)]
    return values / SECONDS if len(known) and np.abs(known).max() >= EARLIEST else values


def _plain(column: Any) -> np.ndarray:
    """Values as numpy has them: texts and dates as objects."""
    return column.to_numpy(zero_copy_only=False)

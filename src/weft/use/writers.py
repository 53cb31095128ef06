"""Rows to a file as they come: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from weft.errors import WeftError

_PARQUET_ROWS = 8192  # written at once


def write_rows(rows: Iterable[dict[str, Any]], out: Path | None, kind: str) -> None:
    """Write every row; `out` None: standard output. Bytes that did not decode become "?"."""
    rows = map(_encodable, rows)
    if kind in (".parquet", ".pq"):
        assert out is not None
        _write_parquet(rows, out)
    elif kind in (".csv", ".tsv", ".txt"):
        with _opened(out) as file:
            _write_csv(rows, file, "\t" if kind == ".tsv" else ",")
    else:
        with _opened(out) as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _encodable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    try:
        with out.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as cause:
        raise WeftError(f"cannot write {str(out)!r}: {cause.strerror}") from cause


def _write_csv(rows: Iterable[dict[str, Any]], file: TextIO, delimiter: str) -> None:
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(
                file, list(row), delimiter=delimiter, extrasaction="ignore", lineterminator="\n"
            )
            writer.writeheader()
        writer.writerow(row)


def _write_parquet(rows: Iterator[dict[str, Any]], out: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as cause:
        raise WeftError(f"writing {out.name} needs pyarrow; or write CSV or JSON lines") from cause
    writer, schema = None, None
    try:
        while chunk := list(islice(rows, _PARQUET_ROWS)):
            table = pyarrow.Table.from_pylist(chunk, schema=schema)
            if writer is None:
                schema = table.schema
                writer = parquet.ParquetWriter(out, schema)
            writer.write_table(table)
    except (pyarrow.ArrowException, OSError) as cause:
        raise WeftError(f"cannot write {str(out)!r} as Parquet: {cause}") from cause
    finally:
        if writer is not None:
            writer.close()

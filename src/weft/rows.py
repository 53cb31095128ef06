"""Result files: JSON lines, one flat row per measurement, only ever appended to.

A row is complete once its newline is written. What a killed program left after the last newline is
no row: `read` leaves it out, and the next `append` removes it. Keys are plain words and values are
text, numbers, booleans or null, so `pandas.read_json(path, lines=True)` reads a file in one call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import WeftError
from weft.files import lock

Row = dict[str, Any]


def append(path: str | Path, rows: Iterable[Row]) -> None:
    """Add rows at the end, all of them in one write; several programs may share a file."""
    path = Path(path)
    data = "".join(_line(row) + "\n" for row in rows).encode()
    if not data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        lock(file)
        file.truncate(_complete(file))
        written = file.write(data)
        if written != len(data):
            raise OSError(f"{path}: {written} of {len(data)} bytes were written; is the disk full?")
        os.fsync(file.fileno())


def read(path: str | Path) -> list[Row]:
    """All rows of a file, in order."""
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError as cause:
        raise WeftError(f"there is no result file {str(path)!r}") from cause
    found = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as cause:
            raise WeftError(f"{path}, line {number}: not JSON; got {line[:80]!r}") from cause
        if not isinstance(row, dict):
            raise WeftError(f"{path}, line {number}: a row is a JSON object; got {line[:80]!r}")
        found.append(row)
    return found


def _line(row: Row) -> str:
    for key, value in row.items():
        if value is not None and not isinstance(value, str | int | float | bool):
            raise WeftError(
                f"a row is flat: text, numbers, booleans or None; got {key}={value!r}, "
                "give it several keys or write it as text"
            )
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError as cause:
        raise WeftError(f"JSON has no NaN and no infinity; use None. The row is {row!r}") from cause


def _complete(file: BinaryIO) -> int:
    """How many bytes belong to complete rows."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0

"""Files of data sets: where they are, and rows with line numbers, so that an error names its place.

A task that reads files looks into its setting `folder`, else into `$WEFT_DATA/<task>`. It knows the
official distribution of its data and a plain form (JSON lines or .npz). No pickle is ever loaded.
A held-out split is chosen by a keyed hash of the content: it does not depend on the order or the
form of the files, and equal items fall on the same side.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError

_NAMES = {str: "text", int: "a whole number", list: "a list"}


def data_folder(task: str, folder: str, expected: str) -> Path:
    """The folder of a task's files; a missing one is reported with what is expected there."""
    data = os.environ.get("WEFT_DATA")
    if not folder and not data:
        raise WeftError(
            f"{task} reads files: give {task}(folder='...'), or set WEFT_DATA to a folder that "
            f"holds one named {task}. It holds {expected}"
        )
    found = Path(folder or Path(data or "") / task).expanduser()
    if not found.exists():
        raise WeftError(f"there is no folder {found} for {task}. It holds {expected}")
    return found


def unexpected(task: str, folder: Path, expected: str) -> WeftError:
    """A folder that is there, but holds other files."""
    inside = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    some = ", ".join(inside[:6]) + (" ..." if len(inside) > 6 else "")
    return WeftError(f"{folder} holds {some or 'nothing'}. For {task} it holds {expected}")


def broken(path: Path, line: int, what: str) -> WeftError:
    """A file that cannot be read as it should be, with the place."""
    return WeftError(f"{path}, line {line}: {what}")


def stamp(path: Path) -> list[Any]:
    """What a cache needs to know of a file to notice that it changed."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def json_lines(path: Path, **kinds: type) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line numbers; each has the named fields, of the named kinds."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as cause:
                raise broken(path, number, f"not JSON ({cause})") from cause
            for name, kind in kinds.items():
                value = row.get(name) if isinstance(row, dict) else None
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise broken(path, number, f"needs {name!r}, {_NAMES[kind]}; got {value!r:.60}")
            yield number, row


def tab_lines(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Rows of a tab-separated file with their line numbers; quotes are plain characters."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = line.decode().rstrip("\r\n").split("\t")
            except UnicodeDecodeError as cause:
                raise broken(path, number, f"not UTF-8 ({cause})") from cause
            if row == [""]:
                continue
            if len(row) != columns:
                raise broken(path, number, f"needs {columns} columns, tabs between; got {len(row)}")
            yield number, row


def class_label(value: Any, classes: int, path: Path, line: int) -> int:
    """A class from a file: 0 to classes − 1."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if number not in range(classes):
        raise broken(path, line, f"a label is 0 to {classes - 1}; got {value!r:.60}")
    return int(number)


def document(content: str | bytes, path: Path, line: int) -> bytes:
    """A document as bytes (text in UTF-8); an empty one is refused."""
    if not content:
        raise broken(path, line, "the text is empty")
    # A lone surrogate, which JSON can hold, has no UTF-8 form of its own.
    return content.encode("utf-8", "replace") if isinstance(content, str) else content


def shuffled(items: Sequence[bytes], seed: int) -> np.ndarray:
    """(items,) their numbers in the order of a keyed hash; equal items stay together."""
    key = seed.to_bytes(8, "little", signed=True)
    digests = (blake2b(item, digest_size=8, key=key).digest() for item in items)
    return np.argsort(np.frombuffer(b"".join(digests), dtype=">u8"), kind="stable")


def held_out(items: Sequence[bytes], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the items that stay and of the `count` that are held out, both in hash order.

    Equal items fall on one side, so a few more than `count` may be held out.
    """
    order = shuffled(items, seed)
    if not 0 < count < len(order):
        raise WeftError(f"of {len(order)} items 1 to {len(order) - 1} can be held out; got {count}")
    while count < len(order) and items[order[count]] == items[order[count - 1]]:
        count += 1
    return order[count:], order[:count]

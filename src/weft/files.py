"""Files that are written completely or not at all, and locks between processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` at the end, unless an error comes first.

    The content is on the disk before it gets the name: a reader, also after a power failure, finds
    the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_entry(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file completely or not at all."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def sync_entry(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(file: IO[Any], *, wait: bool = True) -> bool:
    """Lock an open file until it is closed; False if another process has it and we do not wait.

    The system drops the lock of a process that dies. Without POSIX locks nothing is locked.
    """
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path`; yields False if another process has it and we do not wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        yield lock(file, wait=wait)

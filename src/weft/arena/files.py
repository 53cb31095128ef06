"""Files that are whole or not there, and folders that one process has for itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def replace_file(path: Path, data: bytes) -> None:
    """Write under a temporary name, then rename: a reader finds the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """What a JSON file holds; None where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@contextmanager
def alone(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock file `path`; gives False at once if another holds it and we do not wait."""
    if os.name != "posix":
        yield True
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True

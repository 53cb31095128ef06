"""Files: read with a word where they are not what they should be, written completely or not at all;
locks between processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from weft.errors import WeftError


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


@contextmanager
def replacing_folder(path: Path, names: Container[str], what: str) -> Iterator[Path]:
    """An empty folder to write to; it becomes `path` at the end, unless an error comes first.

    Its files are on the disk before it gets the name. A folder that is replaced holds files of
    these names alone: it was `what`.
    """
    if path.exists() and not (path.is_dir() and all(f.name in names for f in path.iterdir())):
        raise WeftError(
            f"{path} holds something other than {what}, and writing would remove it; "
            "give a folder of the model's own"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, so that the rename stays within one file system.
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        (new := scratch / "new").mkdir()
        yield new
        for file in filter(Path.is_file, new.rglob("*")):
            with file.open("rb+") as content:
                os.fsync(content.fileno())
        _exchange(new, path, scratch / "old")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sync_entry(path.parent)


def _exchange(new: Path, path: Path, old: Path) -> None:
    """Put `new` where `path` is; where that fails, what was there stays there."""
    existed = path.exists()
    if existed:
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if existed:
            old.rename(path)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes were writing by `replacing`; nobody else may write here now."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9]+", path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file completely or not at all."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_text(path: Path) -> str:
    """The text of a file; a WeftError where it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise WeftError(
            f"{path} is not UTF-8 text (byte {cause.start}); save it as UTF-8, or is it another "
            "kind of file?"
        ) from cause
    except OSError as cause:
        raise WeftError(f"cannot read {str(path)!r}: {cause.strerror}") from cause


def parse_json(text: str | bytes, where: object) -> Any:
    """The value of a JSON text; a WeftError that names `where` it stands if it is not valid."""
    try:
        return json.loads(text)
    except RecursionError as cause:
        raise WeftError(f"{where} is nested too deeply to be read") from cause
    except ValueError as cause:
        raise WeftError(f"{where} is not valid JSON: {cause}") from cause


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no file, a WeftError if it is torn."""
    return parse_json(read_text(path), path) if path.is_file() else None


def read_object(path: Path, *needed: str) -> dict[str, Any]:
    """The object in a JSON file, which has the needed keys."""
    found = parse_json(read_text(path), path)
    if not isinstance(found, dict):
        raise WeftError(f"{path} holds a JSON object; got {found!r:.60}")
    if lacking := [key for key in needed if key not in found]:
        raise WeftError(f"{path} lacks {', '.join(map(repr, lacking))}: was it edited, or torn?")
    return found


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

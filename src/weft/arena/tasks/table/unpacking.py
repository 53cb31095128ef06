"""Compressed files, unpacked up to a bound: a small file cannot fill the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.errors import WeftError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
UNPACKED = 64 * 2**20  # bytes that any compressed file may unpack to
RATIO = 200  # and times its size, for larger ones; text packs to a tenth, logs to a fiftieth


def open_unpacked(path: Path) -> Any:
    """The bytes of a file; compressed ones up to a bound."""
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        return path.open("rb")
    return io.BufferedReader(Bounded(opener(path, "rb"), path))


class Bounded(io.RawIOBase):
    """Unpacked bytes, as many as a file of this size may hold."""

    def __init__(self, inner: Any, path: Path) -> None:
        self.inner, self.path, self.at = inner, path, 0
        self.limit = max(UNPACKED, RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.inner.readinto(buffer)
        self.at += count
        if self.at > self.limit:
            raise WeftError(
                f"{self.path} unpacks to over {RATIO} times its size, which no table does; if it "
                "is meant, unpack it and give the unpacked file"
            )
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = self.inner.seek(offset, whence)
        return self.at

    def tell(self) -> int:
        return self.at

    def close(self) -> None:
        self.inner.close()
        super().close()

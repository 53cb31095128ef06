"""Passages: which package of Python's standard library does this passage come from?

Text that every Python has: nothing is downloaded. Each file of eight packages is cut into pieces of
`length` bytes, which begin every length / `overlap` bytes, so that pieces overlap; the label is the
package. A file is in one split as a whole, so a model is tested on files that it has never seen.
Which file goes where follows from the files and the seed, and the files from the version of Python;
`source` names it, and scores of two versions are not of the same data.

Not read: tests, which name the package that they test, and what is shorter than a quarter of
`length`. A piece at the end of a file may be shorter than the others.
"""

from __future__ import annotations

import platform
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks.base import SPLITS, TASKS, Split, majority
from weft.arena.tasks.display import as_text
from weft.arena.tasks.table.splits import made_splits
from weft.errors import WeftError

# Those with at least five files, in every Python from 3.11 on.
PACKAGES = (
    "asyncio", "email", "http", "importlib", "multiprocessing", "unittest", "urllib", "xml"
)  # fmt: skip
_TESTS = {"test", "tests"}
_SHARES: dict[Split, float] = {"test": 0.25, "valid": 0.15}


@TASKS.register("passages")
@dataclass(frozen=True, kw_only=True)
class Passages:
    """Tell the package of a passage of Python's own standard library, byte by byte."""

    length: int = 4096  # bytes of a passage
    overlap: int = 2  # passages that hold the same byte
    seed: int = 0  # which files are tested

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = len(PACKAGES)
    vocab: ClassVar = 256
    tokens: ClassVar = "bytes"
    labels: ClassVar = PACKAGES

    def __post_init__(self) -> None:
        if self.length < 4:
            raise WeftError(f"length is at least 4 bytes; got length={self.length}")
        if not 1 <= self.overlap <= self.length:
            raise WeftError(f"overlap is from 1 to length; got overlap={self.overlap}")

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        files, splits = self._pieces()[3], self._pieces()[2]
        return (
            f"the standard library of Python {platform.python_version()}: {len(PACKAGES)} "
            f"packages, {files} files, {len(splits):,} passages of at most {self.length:,} bytes, "
            "split by file"
        )

    def load(self, split: Split) -> Examples:
        """Passages and the numbers of their packages, in the order of the files."""
        pieces, labels, splits, _ = self._pieces()
        chosen = np.flatnonzero(splits == SPLITS.index(split))
        rows = TokenRows.of([pieces[i] for i in chosen])
        return Examples(rows, self.length, labels=labels[chosen])

    def baselines(self) -> dict[str, float]:
        """The most frequent package; and how often each byte occurs, in no order (naive Bayes)."""
        train, test = self.load("train"), self.load("test")
        return {
            "majority class": majority(train, test),
            "byte frequencies": _naive_bayes(train, test),
        }

    def show(self, row: np.ndarray) -> str:
        """The passage."""
        return as_text(row)

    def _pieces(self) -> tuple[list[bytes], np.ndarray, np.ndarray, int]:
        return _cut(self.length, self.overlap, self.seed, str(_library()))


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


@lru_cache(maxsize=2)
def _cut(
    length: int, overlap: int, seed: int, library: str
) -> tuple[list[bytes], np.ndarray, np.ndarray, int]:
    """Pieces, their labels, their splits, and how many files they are from."""
    salt = seed.to_bytes(16, "little", signed=True)
    pieces, labels, keys = [], [], []
    for label, package in enumerate(PACKAGES):
        for name, content in _files(Path(library), package):
            own = cut(content, length, overlap)
            pieces += own
            labels += [label] * len(own)
            keys += [blake2b(name.encode(), digest_size=12, salt=salt).digest()] * len(own)
    numbers = np.array(labels, dtype=np.int64)
    return pieces, numbers, made_splits(keys, numbers, _SHARES), len(set(keys))


def _files(library: Path, package: str) -> list[tuple[str, bytes]]:
    """The files of a package by their path in the library, in order."""
    paths = sorted((library / package).rglob("*.py"))
    kept = [path for path in paths if not _TESTS & set(path.relative_to(library).parts)]
    if not kept:
        raise WeftError(
            f"this Python's standard library has no files of {package!r} in {library}: the task "
            "passages reads them; run it with a Python that has its library as .py files"
        )
    return [(path.relative_to(library).as_posix(), path.read_bytes()) for path in kept]


def cut(content: bytes, length: int, overlap: int) -> list[bytes]:
    """Pieces that begin every length / overlap bytes; none shorter than a quarter of `length`."""
    step = max(1, length // overlap)
    least = -(-length // 4)
    begins = range(0, max(1, len(content) - length + step), step)
    pieces = [content[begin : begin + length] for begin in begins]
    return [piece for piece in pieces if len(piece) >= least]


def _naive_bayes(train: Examples, test: Examples) -> float:
    """Accuracy of log p(package) + Σ log p(byte | package), bytes counted without their order."""
    counts = np.ones((len(PACKAGES), 256))
    for row, label in zip(train.rows, train.classes, strict=True):
        counts[label] += np.bincount(row, minlength=256)
    prior = np.bincount(train.classes, minlength=len(PACKAGES)) + 1.0
    logs = np.log(counts / counts.sum(1, keepdims=True))  # (classes, 256)
    seen = np.stack([np.bincount(row, minlength=256) for row in test.rows])  # (rows, 256)
    found = (seen @ logs.T + np.log(prior)).argmax(1)
    return float((found == test.classes).mean())

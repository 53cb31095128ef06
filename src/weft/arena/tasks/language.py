"""Language: predict each byte of a text from the bytes before it.

The file is cut by position: the first 90 % train, the next 5 % validate, the last 5 % test, as is
the custom for enwik8 and text8. A row is a window of `length` bytes that begins with the last byte
of the window before it, which is only read. So every byte of a split is predicted exactly once,
save its very first; a byte early in a window is predicted from few others, which makes the score
higher than one measured with overlapping windows.

    bits per byte = −(1 / bytes) Σ log₂ p(byte | bytes before it in the window)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split
from weft.arena.tasks.from_files import FromTexts
from weft.errors import WeftError

EXPECTED = (
    "one file of text, of any name: enwik8 or text8 (http://mattmahoney.net/dc/textdata.html), or "
    "your own; the setting may also name the file itself"
)
_SHARES = {"train": (0.0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1.0)}
_PIECE = 1 << 22


@TASKS.register("language")
@dataclass(frozen=True, kw_only=True)
class Language(FromTexts):
    """Predict the next byte of a text."""

    length: int = 1024  # bytes of a window
    folder: str = ""  # with one file, or the file; default: $WEFT_DATA/language

    kind: ClassVar = "language"
    metric: ClassVar = "bits per byte"
    classes: ClassVar = 0
    expected: ClassVar = EXPECTED

    def __post_init__(self) -> None:
        if self.length < 2:
            raise WeftError(f"a window has a byte to read and one to predict; got {self.length}")

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        path = self._file()
        return f"{path.name}, {path.stat().st_size:,} bytes, split 90/5/5 by position"

    def load(self, split: Split) -> Examples:
        """Windows in the order of the text."""
        data = self._bytes(split)
        begins = range(0, len(data) - 1, self.length - 1)
        rows = TokenRows.of([data[begin : begin + self.length] for begin in begins])
        return Examples(rows, self.length)

    def baselines(self) -> dict[str, float]:
        """Bits per byte without learning: nothing known, frequencies, frequencies after a byte."""
        train, test = self._bytes("train"), self._bytes("test")
        pairs = _pair_counts(train)  # (256, 256)
        single = (np.bincount(train, minlength=256) + 1.0) / (len(train) + 256)
        # A byte seen never or seldom leaves its followers to their own frequencies.
        after = (pairs + single) / (pairs.sum(1, keepdims=True) + 1)
        seen = _pair_counts(test)
        bits = {"byte frequencies": -np.log2(single)[None], "previous byte": -np.log2(after)}
        costs = {name: float((seen * cost).sum() / seen.sum()) for name, cost in bits.items()}
        return {"uniform": 8.0, **costs}

    def _bytes(self, split: Split) -> np.ndarray:
        path = self._file()
        data = np.memmap(path, dtype=np.uint8, mode="r")
        begin, end = (int(share * len(data)) for share in _SHARES[split])
        if end - begin < 2:
            raise WeftError(f"{path} is too short: its {split} part has {end - begin} bytes")
        return np.asarray(data[begin:end])

    def _file(self) -> Path:
        found = self._folder()
        inside = [found] if found.is_file() else sorted(p for p in found.iterdir() if p.is_file())
        if len(inside) != 1:
            raise readers.unexpected("language", found, EXPECTED)
        if not inside[0].stat().st_size:
            raise WeftError(f"{inside[0]} is empty")
        return inside[0]


def _pair_counts(data: np.ndarray) -> np.ndarray:
    """(256, 256) how often each byte follows each."""
    counts = np.zeros(256 * 256, dtype=np.int64)
    for begin in range(0, len(data) - 1, _PIECE):
        piece = data[begin : begin + _PIECE + 1].astype(np.int64)
        counts += np.bincount(piece[:-1] * 256 + piece[1:], minlength=len(counts))
    return counts.reshape(256, 256)

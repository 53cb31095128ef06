"""What tasks that read files of a folder, and tasks of bytes, have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.tasks import readers
from weft.arena.tasks.base import Split
from weft.arena.tasks.display import as_text
from weft.errors import WeftError


class FromFiles:
    """A task whose files lie in its setting `folder`, else in $WEFT_DATA/<name>."""

    name: ClassVar[str]
    expected: ClassVar[str]  # what the folder holds, in words
    folder: str

    def _folder(self) -> Path:
        return readers.data_folder(self.name, self.folder, self.expected)


class FromTexts(FromFiles):
    """A task that reads texts byte by byte."""

    vocab: ClassVar = 256
    tokens: ClassVar = "bytes"
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise WeftError(f"length is at least 1; got length={self.length}")

    def show(self, row: np.ndarray) -> str:
        """The text."""
        return as_text(row)


def of_split(items: Sequence[bytes], split: Split, valid: int, seed: int) -> np.ndarray:
    """Numbers of the items of a split, in the order of a hash; validation is held out of training.

    `items` are the test items, or else those of training and validation together.
    """
    if split == "test":
        return readers.shuffled(items, seed)
    stay, held = readers.held_out(items, valid, seed)
    return held if split == "valid" else stay

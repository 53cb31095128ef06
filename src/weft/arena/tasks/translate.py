"""Translation: your own pairs of texts, a source and what is to be written for it.

A folder holds train.tsv, valid.tsv and test.tsv: a source, a tab and a target on each line, in
UTF-8. Tokens are bytes. Both sides are cut to `length`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import SPLITS, TASKS, Split
from weft.arena.tasks.from_files import FromTexts
from weft.errors import WeftError

EXPECTED = "train.tsv, valid.tsv and test.tsv: a source, a tab and a target on each line, in UTF-8"


@TASKS.register("translate")
@dataclass(frozen=True, kw_only=True)
class Translate(FromTexts):
    """Write the target of a source, byte by byte."""

    length: int = 256
    folder: str = ""  # default: $WEFT_DATA/translate

    kind: ClassVar = "translate"
    metric: ClassVar = "token accuracy"
    classes: ClassVar = 0
    expected: ClassVar = EXPECTED

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        sizes = [f"{split} {self._path(split).stat().st_size:,}" for split in SPLITS]
        return f"pairs of texts, folder {self._folder().name!r}, bytes: {', '.join(sizes)}"

    def load(self, split: Split) -> Examples:
        """The pairs of a file, in its order."""
        path = self._path(split)
        found = [
            [readers.document(text, path, number) for text in row]
            for number, row in readers.tab_lines(path, 2)
        ]
        if not found:
            raise WeftError(f"{path} holds no pairs. The folder holds {EXPECTED}")
        sources, targets = zip(*found, strict=True)
        return Examples(TokenRows.of(sources), self.length, second=TokenRows.of(targets))

    def baselines(self) -> dict[str, float]:
        """Token accuracy, ends included: the most frequent byte, its end known; and copying."""
        train, test = self.load("train"), self.load("test")
        usual = np.bincount(train.others.tokens, minlength=256).argmax()
        most = copied = total = 0
        for row in range(len(test)):
            target, source = (side[row][: self.length] for side in (test.others, test.rows))
            shared = min(len(target), len(source))
            copied += int((target[:shared] == source[:shared]).sum()) + 1
            most += int((target == usual).sum()) + 1
            total += len(target) + 1
        return {"most frequent byte": most / total, "copying": copied / total}

    def _path(self, split: Split) -> Path:
        path = self._folder() / f"{split}.tsv"
        if not path.is_file():
            raise readers.unexpected("translate", self._folder(), EXPECTED)
        return path

"""Text: is a film review good or bad, read byte by byte?

The reviews of Maas et al. (IMDB): 25,000 to train, 25,000 to test, half of them positive. Reviews
to validate on are taken from the training set, by a hash of their text (`readers.py`).

Papers: Maas et al. 2011, https://aclanthology.org/P11-1015; Tay et al. 2021, Long Range Arena,
https://arxiv.org/abs/2011.04006, section 2.2.2
Differs from the latter: there, validation is done on the test set. There, a byte's id is byte + 1
and 0 is padding (257 ids); here it is the byte, and padding has no id. Its paper reads 4,000
bytes, its released settings 1,000: `length`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split, majority
from weft.arena.tasks.from_files import FromTexts, of_split
from weft.errors import WeftError

EXPECTED = (
    "train/pos, train/neg, test/pos and test/neg, as in aclImdb "
    "(https://ai.stanford.edu/~amaas/data/sentiment/), or train.jsonl and test.jsonl with the "
    "fields text and label (0 or 1)"
)
_CLASSES = ("neg", "pos")


@TASKS.register("text")
@dataclass(frozen=True, kw_only=True)
class Text(FromTexts):
    """Tell good film reviews from bad ones, byte by byte."""

    length: int = 4000  # bytes; longer reviews are cut
    valid: int = 2_500  # training reviews that are held out for validation
    seed: int = 0  # which ones
    folder: str = ""  # default: $WEFT_DATA/text

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 2
    expected: ClassVar = EXPECTED
    labels: ClassVar = _CLASSES

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        folder = self._folder()
        if _official(folder):
            return f"IMDB reviews (aclImdb), {self.valid:,} of training held out by hash"
        return (
            f"reviews, jsonl files of the folder {folder.name!r}, {self.valid:,} held out by hash"
        )

    def load(self, split: Split) -> Examples:
        """Reviews and whether they are good, in the order of a hash."""
        texts, labels = _read(self._folder(), "test" if split == "test" else "train")
        chosen = of_split(texts, split, self.valid, self.seed)
        rows = TokenRows.of([texts[i][: self.length] for i in chosen])
        return Examples(rows, self.length, labels=labels[chosen])

    def baselines(self) -> dict[str, float]:
        """The most frequent class."""
        return {"majority class": majority(self.load("train"), self.load("test"))}


def _official(folder: Path) -> Path | None:
    for place in (folder, folder / "aclImdb"):
        if (place / "train" / "pos").is_dir():
            return place
    return None


def _read(folder: Path, name: str) -> tuple[list[bytes], np.ndarray]:
    """All reviews of a file or folder, as bytes, with their labels."""
    if official := _official(folder):
        found = [
            (readers.document(file.read_bytes(), file, 1), label)
            for label, part in enumerate(_CLASSES)
            for file in sorted((official / name / part).glob("*.txt"))
        ]
        path = official / name
    else:
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            raise readers.unexpected("text", folder, EXPECTED)
        found = [
            (
                readers.document(row["text"], path, line),
                readers.class_label(row["label"], len(_CLASSES), path, line),
            )
            for line, row in readers.json_lines(path, text=str, label=int)
        ]
    if not found:
        raise WeftError(f"{path} holds no reviews")
    return [text for text, _ in found], np.array([label for _, label in found], dtype=np.int64)

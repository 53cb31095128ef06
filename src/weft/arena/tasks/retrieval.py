"""Retrieval: does one of two papers cite the other? Two documents, read byte by byte.

A model encodes each document alone and compares the two codes, so what matters has to fit into a
code. Documents are cut to `length` bytes and stored once, however many pairs they are in.

Papers: Radev et al. 2013 (the ACL Anthology Network), https://aclanthology.org/W09-3607; Tay et al.
2021, Long Range Arena, https://arxiv.org/abs/2011.04006, section 2.2.3
Differs from the latter: a byte's id is the byte, and padding has no id; where the file holds a
text as Python writes bytes (b'...'), the bytes are read, not their notation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.cache import Arrays, cached
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split, best_threshold, majority
from weft.arena.tasks.from_files import FromTexts
from weft.errors import WeftError

VERSION = 1
EXPECTED = (
    "new_aan_pairs.train.tsv, .eval.tsv and .test.tsv of Long Range Arena (lra_release), or "
    "docs.jsonl with the field text, and train.jsonl, valid.jsonl and test.jsonl with the fields "
    "first and second (rows of docs, from 0) and label (0 or 1)"
)
_OFFICIAL = {
    split: f"new_aan_pairs.{name}.tsv"
    for split, name in {"train": "train", "valid": "eval", "test": "test"}.items()
}
_SAMPLE = 5_000  # training pairs that set the threshold of the overlap

Pair = tuple[int, bytes, bytes, int]  # line, first, second, label


@TASKS.register("retrieval")
@dataclass(frozen=True, kw_only=True)
class Retrieval(FromTexts):
    """Tell whether one of two papers cites the other, byte by byte."""

    length: int = 4000  # bytes of each document; longer ones are cut
    folder: str = ""  # default: $WEFT_DATA/retrieval

    kind: ClassVar = "match"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 2
    expected: ClassVar = EXPECTED

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        folder = self._folder()
        if (folder / _OFFICIAL["test"]).is_file():
            return "ACL Anthology Network pairs of Long Range Arena (new_aan_pairs)"
        return f"pairs of documents, jsonl files of the folder {folder.name!r}"

    def load(self, split: Split) -> Examples:
        """Pairs and whether the first cites the second."""
        folder = self._folder()
        files = [folder / _OFFICIAL[split]]
        if not files[0].is_file():
            files = [folder / f"{split}.jsonl", folder / "docs.jsonl"]
        if not all(file.is_file() for file in files):
            raise readers.unexpected("retrieval", folder, EXPECTED)
        settings = {
            "files": [readers.stamp(file) for file in files],
            "length": self.length,
            "version": VERSION,
        }
        found = cached("retrieval", settings, lambda _: _read(files, self.length))
        documents = found["tokens"], found["starts"]
        return Examples(
            TokenRows(*documents, found["first"]),
            self.length,
            labels=found["labels"],
            second=TokenRows(*documents, found["second"]),
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent class, and the share of words that the two documents have in common."""
        train, test = self.load("train"), self.load("test")
        sample = np.arange(min(_SAMPLE, len(train)))
        threshold = best_threshold(overlaps(train, sample), train.classes[sample])
        guess = overlaps(test, np.arange(len(test))) >= threshold
        return {
            "majority class": majority(train, test),
            "words in common": float((guess == test.labels).mean()),
        }


def overlaps(examples: Examples, index: np.ndarray) -> np.ndarray:
    """(pairs,) words that both documents hold, as a share of the words that either holds."""
    words: dict[int, set[bytes]] = {}

    def words_of(rows: TokenRows, i: int) -> set[bytes]:
        assert rows.pick is not None
        number = int(rows.pick[i])
        if number not in words:
            text = rows[i].tobytes().lower()
            words[number] = set(re.findall(rb"[a-z]{4,}", text))
        return words[number]

    shares = []
    for i in index:
        first, second = words_of(examples.rows, i), words_of(examples.others, i)
        shares.append(len(first & second) / max(1, len(first | second)))
    return np.array(shares)


def _read(files: list[Path], length: int) -> Arrays:
    """Pairs of one split; each document is kept once."""
    pairs = _official_pairs(files[0]) if len(files) == 1 else _plain_pairs(*files)
    numbers: dict[bytes, int] = {}
    rows = []
    for line, first, second, label in pairs:
        places = [
            numbers.setdefault(readers.document(text, files[0], line)[:length], len(numbers))
            for text in (first, second)
        ]
        rows.append((*places, label))
    if not rows:
        raise WeftError(f"{files[0]} holds no pairs")
    documents = TokenRows.of(list(numbers))
    first, second, labels = np.array(rows, dtype=np.int64).T.copy()
    return {
        "tokens": documents.tokens,
        "starts": documents.starts,
        "first": first,
        "second": second,
        "labels": labels,
    }


def _official_pairs(path: Path) -> Iterator[Pair]:
    for line, (label, _, _, first, second) in readers.tab_lines(path, columns=5):
        one, other = _literal(first, path, line), _literal(second, path, line)
        yield line, one, other, readers.class_label(label, 2, path, line)


def _literal(text: str, path: Path, line: int) -> bytes:
    """The bytes of a text, or of the Python literal b'...' that stands for it."""
    if not text.startswith(("b'", 'b"')):
        return text.encode()
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError) as cause:
        raise readers.broken(path, line, f"a text begins as b'...' and is none: {cause}") from cause
    return value


def _plain_pairs(path: Path, documents: Path) -> Iterator[Pair]:
    texts = [
        readers.document(row["text"], documents, line)
        for line, row in readers.json_lines(documents, text=str)
    ]
    for line, row in readers.json_lines(path, first=int, second=int, label=int):
        for name in ("first", "second"):
            if not 0 <= row[name] < len(texts):
                what = (
                    f"{name} is a row of {documents.name}, 0 to {len(texts) - 1}; got {row[name]}"
                )
                raise readers.broken(path, line, what)
        label = readers.class_label(row["label"], 2, path, line)
        yield line, texts[row["first"]], texts[row["second"]], label

"""ListOps: what does a nested list of operators and digits come to?

    [MAX 4 [SM 7 8 ] 0 ]    ->  class 5

The default settings are Long Range Arena's: trees of depth 10, 500 < tokens < 2000, none twice,
96,000 to train, 2,000 to validate, 2,000 to test. Smaller trees are a matter of `length`, `depth`
and `arguments`. Test trees are drawn first, then those of validation, then those of training: the
test set does not change with the size of the training set.

Paper: Tay et al. 2021, https://arxiv.org/abs/2011.04006, section 2.2.1
Differs from it: seeded; ids are fixed and neither padding nor unknown tokens have one, so there are
15 instead of 17.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import numpy as np

from weft.arena.data.cache import Arrays, cached
from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split, majority, most_frequent
from weft.arena.tasks.listops.trees import (
    CHUNK,
    FIRST_OPERATOR,
    OPERATORS,
    TOKENS,
    Rules,
    chunk,
    evaluate,
)
from weft.errors import WeftError

VERSION = 1
EXPECTED = (
    "basic_train.tsv, basic_val.tsv and basic_test.tsv of Long Range Arena (lra_release), or "
    "train.jsonl, valid.jsonl and test.jsonl with the fields text and label"
)
_OFFICIAL = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
_IDS = {token: number for number, token in enumerate(TOKENS)}
_BARREN = 256  # chunks in a row with hardly a new tree: the rules allow no more


@TASKS.register("listops")
@dataclass(frozen=True, kw_only=True)
class ListOps:
    """Compute a nested list of MIN, MAX, MED and SM (sum modulo 10) over digits."""

    length: int = 2000  # trees have fewer tokens than this
    shortest: int | None = None  # and more than this; None: a quarter of length
    depth: int = 10  # levels of a tree, digits included
    arguments: int = 10  # most arguments of an operator
    train: int = 96_000
    valid: int = 2_000
    test: int = 2_000
    seed: int = 0
    folder: str = ""  # read files instead of drawing trees

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    classes: ClassVar = 10
    vocab: ClassVar = len(TOKENS)

    def __post_init__(self) -> None:
        if self.arguments < 2 or self.depth < 2:
            raise WeftError(
                "an operator has 2 arguments or more, and a tree 2 levels or more; got "
                f"arguments={self.arguments}, depth={self.depth}"
            )
        if not 1 <= self.rules.shortest < self.length - 1:
            raise WeftError(
                f"trees have more than shortest and fewer than length tokens; got "
                f"{self.rules.shortest} and {self.length}"
            )
        if min(self.train, self.valid, self.test) < 1:
            raise WeftError("each split has at least one tree; see train, valid and test")

    @property
    def rules(self) -> Rules:
        """What the generator needs to know."""
        shortest = self.length // 4 if self.shortest is None else self.shortest
        return Rules(
            depth=self.depth, arguments=self.arguments, shortest=shortest, length=self.length
        )

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        if self.folder:
            return f"ListOps, files of the folder {Path(self.folder).name!r}"
        return f"ListOps, own generator, published rules, seed {self.seed}"

    def load(self, split: Split) -> Examples:
        """Trees and their values; groups are the root's operator."""
        found = self._read(split) if self.folder else self._drawn(split)
        rows = TokenRows(found["tokens"], found["starts"])
        root = rows.tokens[rows.starts[:-1]].astype(np.int64)
        return Examples(
            rows,
            self.length,
            labels=found["labels"],
            groups=root - FIRST_OPERATOR,
            group_names=OPERATORS,
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent class, and the most frequent class of each root operator."""
        train, test = self.load("train"), self.load("test")
        right = 0.0
        for root in range(len(OPERATORS)):
            answers = test.classes[test.groups == root]
            if len(answers):
                usual = most_frequent(train.classes[train.groups == root])
                right += len(answers) * float((answers == usual).mean())
        return {
            "majority class": majority(train, test),
            "root operator alone": right / len(test),
        }

    def show(self, row: np.ndarray) -> str:
        """The expression as it is written."""
        return " ".join(TOKENS[token] for token in row)

    def _drawn(self, split: Split) -> Arrays:
        settings = {k: v for k, v in asdict(self).items() if k != "folder"}
        found = cached("listops", {**settings, "version": VERSION}, lambda _: self._draw())
        first = {"test": 0, "valid": self.test, "train": self.test + self.valid}[split]
        starts = found["starts"][first : first + getattr(self, split) + 1]
        tokens = found["tokens"][starts[0] : starts[-1]]
        labels = found["labels"][first : first + len(starts) - 1]
        return {"tokens": tokens, "starts": starts - starts[0], "labels": labels}

    def _draw(self) -> Arrays:
        wanted = self.test + self.valid + self.train
        trees: list[np.ndarray] = []
        labels: list[int] = []
        seen: set[bytes] = set()
        number, recent = 0, [CHUNK] * _BARREN
        while len(trees) < wanted:
            drawn = chunk(self.rules, self.seed, number)
            before = len(trees)
            places = np.split(drawn.tokens, np.cumsum(drawn.lengths)[:-1])
            for tree, value in zip(places, drawn.values, strict=False):
                digest = blake2b(tree.tobytes(), digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    trees.append(tree)
                    labels.append(int(value))
            number += 1
            recent[number % _BARREN] = len(trees) - before
            if sum(recent) < _BARREN // 8:
                raise WeftError(
                    f"{self} asks for {wanted} different trees, and the rules hardly allow more "
                    f"than the {len(trees)} found; raise depth or arguments, or change the lengths"
                )
        rows = TokenRows.of(trees[:wanted])
        chosen = np.asarray(labels[:wanted], dtype=np.int64)
        return {"tokens": rows.tokens, "starts": rows.starts, "labels": chosen}

    def _read(self, split: Split) -> Arrays:
        folder = readers.data_folder("listops", self.folder, EXPECTED)
        for name in (_OFFICIAL[split], f"{split}.jsonl"):
            if (path := folder / name).exists():
                settings = {"file": readers.stamp(path), "version": VERSION}
                return cached("listops", settings, lambda _, path=path: read(path))
        raise readers.unexpected("listops", folder, EXPECTED)


def read(path: Path) -> Arrays:
    """Trees of a file; every label is computed again and has to agree."""
    trees, labels = [], []
    for line, text, given in _lines(path):
        # Brackets that only mark binary subtrees.
        words = text.replace("(", " ").replace(")", " ").split()
        unknown = sorted(set(words) - _IDS.keys())
        if unknown or not words or _IDS[words[0]] < FIRST_OPERATOR:
            what = f"a list holds {' '.join(TOKENS)}, an operator first; got"
            raise readers.broken(path, line, f"{what} {(unknown or words)[:3]}")
        try:
            value = evaluate(words)
        except WeftError as cause:
            raise readers.broken(path, line, str(cause)) from cause
        if value != readers.class_label(given, 10, path, line):
            raise readers.broken(path, line, f"the list comes to {value}, its label says {given}")
        trees.append(np.array([_IDS[word] for word in words], dtype=np.uint8))
        labels.append(value)
    if not trees:
        raise WeftError(f"{path} holds no lists")
    rows = TokenRows.of(trees)
    return {"tokens": rows.tokens, "starts": rows.starts, "labels": np.array(labels, np.int64)}


def _lines(path: Path):
    if path.suffix == ".jsonl":
        for line, row in readers.json_lines(path, text=str, label=int):
            yield line, row["text"], row["label"]
        return
    for line, (source, target) in readers.tab_lines(path, columns=2):
        if (line, source, target) != (1, "Source", "Target"):
            yield line, source, target

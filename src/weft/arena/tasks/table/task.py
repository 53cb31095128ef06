"""Your own data: a table with a text column and a label column, as a task.

    table(data='reviews.csv', text='body', label='stars')                    classify a text
    table(data='pairs.jsonl', text='question', second='answer', label='fits')    match two texts

Labels are text, integers or booleans; the classes are their distinct values in order. Splits come
from a column, from further files, or are made; a split that is not given is taken from train.
Sequences are cut to `length`, by default the 95th percentile of their lengths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft.arena.data.examples import Examples
from weft.arena.tasks.base import SPLITS, TASKS, Split, majority, most_frequent
from weft.arena.tasks.table.numbers import Numbers
from weft.arena.tasks.table.prepared import Making, Prepared, prepared, usual_length
from weft.arena.tasks.table.rows import Wanted
from weft.arena.tasks.table.tokens import BYTES, readable, vocabulary
from weft.errors import WeftError

BINS = 10  # of the baseline that knows a text's length alone


@TASKS.register("table")
@dataclass(frozen=True, kw_only=True)
class Table:
    """Classify your own texts, or match pairs of them."""

    data: str | tuple[str, ...] = ""  # files: CSV, JSON lines, Parquet; * and ? are understood
    text: str = "text"  # the column of texts
    label: str = "label"  # the column of classes
    second: str | None = None  # the column of the other text, where pairs are matched
    # Tokens that are global to mixers that know global tokens (longformer): a column of texts, such
    # as questions, each put in front of its text, and the last character of each of these strings,
    # such as ". " or "\n".
    global_text: str | None = None
    global_after: str = ""
    group: str | None = None  # a column, e.g. of books: rows that share its value are in one split
    number: bool = False  # the label is a number to predict, not a class
    split: str | None = None  # a column that says train, valid or test
    valid_file: str | None = None
    test_file: str | None = None
    tokens: str = BYTES  # or the path of a `tokenizers` JSON file
    length: int = 0  # longest sequence; 0: the 95th percentile, rounded up to a multiple of 64
    encoding: str = "utf-8"  # of CSV and JSON lines
    valid_share: float = 0.1  # of the rows, where no validation split is given
    test_share: float = 0.1
    seed: int = 0  # of the splits that are made
    bad_share: float = 0.1  # more rows that cannot be used than this are refused
    most_classes: int = 100  # more distinct labels than this are refused
    keep_leaks: bool = False  # leave texts in train that given valid or test splits hold too

    def __post_init__(self) -> None:
        for name in ("valid_share", "test_share"):
            if not 0.0 < getattr(self, name) < 0.5:
                raise WeftError(f"{name} is above 0 and below 0.5; got {getattr(self, name)}")
        if not 0.0 <= self.bad_share <= 1.0 or self.length < 0 or self.most_classes < 2:
            raise WeftError(
                "bad_share is in [0, 1], length at least 0 and most_classes at least 2; got "
                f"{self.bad_share}, {self.length} and {self.most_classes}"
            )
        if self.number and self.second:
            raise WeftError("a number is predicted for one text, not for a pair; leave out second")
        # So that a task says its length, and means the same when it is read back.
        if self.data and not self.length:
            object.__setattr__(self, "length", usual_length(self.prepared))

    @property
    def metric(self) -> Literal["accuracy", "mean squared error"]:
        """What a model is scored by."""
        return "mean squared error" if self.number else "accuracy"

    @property
    def kind(self) -> Literal["classify", "match", "regress"]:
        """Two text columns make pairs."""
        if self.number:
            return "regress"
        return "match" if self.second else "classify"

    @property
    def vocab(self) -> int:
        """Ids of the tokens."""
        return vocabulary(self.tokens)

    @property
    def classes(self) -> int:
        """Distinct labels."""
        return len(self.prepared.names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels as they stand in the table, class 0 first."""
        return self.prepared.names

    @property
    def labels(self) -> tuple[Any, ...]:
        """The same as the files have them: text, numbers or booleans."""
        return self.prepared.written

    @property
    def numbers(self) -> Numbers | None:
        """How numbers are scaled, where the labels are numbers."""
        return self.prepared.numbers

    @property
    def source(self) -> str:
        """The files, the columns, and a digest by which a changed file is noticed."""
        found = self.prepared
        columns = " and ".join(filter(None, (self.global_text, self.text, self.second)))
        return (
            f"{', '.join(found.files)} (sha256 {found.digest}), {len(found.labels):,} rows: "
            f"{columns} as {self.tokens}, label {self.label}"
        )

    @property
    def title(self) -> str:
        """What is asked, in words."""
        texts = " and ".join(filter(None, (self.text, self.second)))
        return f"{self.label} from {texts} of {', '.join(self.prepared.files)}"

    @property
    def prepared(self) -> Prepared:
        """The table in memory; read again only if a file has changed."""
        if not self.data:
            raise WeftError(
                "a table is read from your file: table(data='reviews.csv', text='body', "
                "label='stars')"
            )
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(Wanted)}
        shares: tuple[tuple[Split, float], ...]
        shares = ("test", self.test_share), ("valid", self.valid_share)
        marks = bool(self.global_text or self.global_after)
        making = Making(self.tokens, self.seed, shares, self.keep_leaks, marks, self.global_after)
        return prepared(Wanted(**fields), making)

    def load(self, split: Split) -> Examples:
        """One split, always the same for the same files and settings."""
        found = self.prepared
        index = np.flatnonzero(found.splits == SPLITS.index(split))
        second = None if found.second is None else found.second.chosen(index)
        return Examples(
            found.rows.chosen(index),
            self.length,
            labels=found.labels[index],
            second=second,
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent class, and the most frequent one among texts of like length."""
        train, test = self.load("train"), self.load("test")
        if self.number:
            errors = np.square(test.classes - train.classes.mean())
            return {"mean of the labels": float(errors.mean())}
        return {
            "majority class": majority(train, test),
            "length of the text": _by_length(train, test),
        }

    def show(self, row: np.ndarray) -> str:
        """The text of a row."""
        return readable(row, self.tokens)


def table_from_options(data: str | Sequence[str], text: str, label: str, **settings: Any) -> Table:
    """The task of `weft compare --data ... --text ... --label ...`; reads and checks the files.

    `data` is a path or several. `settings` are further fields of Table; None means not given.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    files = data if isinstance(data, str) else tuple(map(str, data))
    task = TASKS.make("table", data=files, text=text, label=label, **given)
    for split in SPLITS:
        task.load(split)
    return task


def _by_length(train: Examples, test: Examples) -> float:
    """Accuracy of the most frequent class of each tenth of the lengths."""
    edges = np.quantile(train.rows.lengths, np.linspace(0, 1, BINS + 1)[1:-1])
    bins = np.searchsorted(edges, train.rows.lengths, side="right")
    usual = most_frequent(train.classes)
    best = np.array(
        [
            most_frequent(train.classes[bins == place]) if (bins == place).any() else usual
            for place in range(BINS)
        ]
    )
    guess = best[np.searchsorted(edges, test.rows.lengths, side="right")]
    return float((guess == test.labels).mean())

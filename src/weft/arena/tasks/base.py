"""A task: data in splits, what to predict, and how badly one can do without learning anything."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import numpy as np

from weft.arena.data.examples import Examples
from weft.registry import Registry

TASKS = Registry("task")
TaskConfig = Annotated[Any, TASKS]  # a config, a table or a spec string

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


class Task(Protocol):
    """What a task's config offers; registered in TASKS, built by its dataclass fields alone."""

    name: str
    # A class, a class for a pair, the next token, a sequence for a sequence.
    kind: Literal["classify", "match", "regress", "language", "translate"]
    vocab: int  # ids run from 0 to vocab − 1
    classes: int  # 0 for language and translate
    length: int  # longest sequence
    metric: Literal["accuracy", "gini", "bits per byte", "token accuracy", "mean squared error"]

    @property
    def source(self) -> str:
        """Which data this is, in words; part of every result."""
        ...

    def load(self, split: Split) -> Examples:
        """One split, always the same for the same settings."""
        ...

    def baselines(self) -> dict[str, float]:
        """Scores on the test split of rules that read nothing, or next to nothing."""
        ...

    def show(self, row: np.ndarray) -> str:
        """A row of tokens as a person reads it."""
        ...


def most_frequent(classes: np.ndarray) -> int:
    """The class that most rows have; the lowest of several."""
    return int(np.bincount(classes).argmax())


def majority(train: Examples, test: Examples) -> float:
    """Accuracy on `test` of answering always the most frequent class of `train`."""
    return float((test.classes == most_frequent(train.classes)).mean())


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """The score from which on saying 1 is right most often: the best that one number can do."""
    order = np.argsort(scores, kind="stable")
    ordered = np.r_[scores[order], np.inf]
    # Cut before place i: those below are called 0, the others 1. Equal scores stay together.
    right = np.cumsum(np.r_[(labels == 1).sum(), np.where(labels[order] == 0, 1, -1)])
    right[np.flatnonzero(ordered[1:] == ordered[:-1]) + 1] = -1
    return float(ordered[right.argmax()])

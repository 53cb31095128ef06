"""A split of a task in memory: all tokens in one array, so that a batch is one gather.

Rows are sequences of small integers of any length; `batch` cuts them to the task's length and pads
them to the longest of the batch, to a fixed width, or to a multiple.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import WeftError
from weft.objectives.batch import Batch


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Sequences one after another: sequence i is tokens[starts[i] : starts[i + 1]].

    Each is a row; or `pick` names the sequence of each row, so that rows may share one. `marks` say
    more about each token, to mixers that know them.
    """

    tokens: np.ndarray  # (total,) unsigned integers
    starts: np.ndarray  # (sequences + 1,) int64
    pick: np.ndarray | None = None  # (rows,) int64
    marks: Mapping[str, np.ndarray] = field(default_factory=dict)  # (total,) each

    def __post_init__(self) -> None:
        if self.starts[0] != 0 or self.starts[-1] != len(self.tokens):
            raise WeftError(
                f"rows begin at 0 and end with the tokens; got {self.starts[0]} to "
                f"{self.starts[-1]} of {len(self.tokens)}"
            )
        for name, mark in self.marks.items():
            if mark.shape != self.tokens.shape:
                raise WeftError(
                    f"{name} has one value for each token; got {mark.shape} for "
                    f"{self.tokens.shape} tokens"
                )

    @classmethod
    def of(
        cls,
        sequences: Sequence[bytes | np.ndarray | Sequence[int]],
        pick: np.ndarray | None = None,
        marks: Mapping[str, Sequence[np.ndarray]] | None = None,
    ) -> TokenRows:
        """From separate sequences; bytes stay bytes, arrays keep their type, lists become int32.

        Each of the `marks` has an array for each sequence.
        """
        arrays = [_array(sequence) for sequence in sequences]
        starts = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=starts[1:])
        joined = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.uint8)
        kept = {name: np.concatenate(each) for name, each in (marks or {}).items() if len(each)}
        return cls(joined, starts, pick, kept)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all tokens and marks: other data of the same size has another."""
        own = {"tokens": self.tokens, "starts": self.starts, "pick": self.pick}
        return _hashed({**own, **self.marks})

    def __len__(self) -> int:
        return len(self.starts) - 1 if self.pick is None else len(self.pick)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: int) -> np.ndarray:
        index = index if self.pick is None else self.pick[index]
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def chosen(self, index: np.ndarray) -> TokenRows:
        """These rows alone, in this order."""
        wanted = index if self.pick is None else self.pick[index]
        spans = [slice(self.starts[row], self.starts[row + 1]) for row in wanted]
        marks = {name: [mark[span] for span in spans] for name, mark in self.marks.items()}
        return TokenRows.of([self.tokens[span] for span in spans], marks=marks)

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) tokens of each row."""
        sizes = np.diff(self.starts)
        return sizes if self.pick is None else sizes[self.pick]

    @cached_property
    def shortest(self) -> int:
        """Tokens of the shortest row."""
        return int(self.lengths.min(initial=np.iinfo(np.int64).max))

    @cached_property
    def table(self) -> np.ndarray | None:
        """The sequences as rows of a matrix (sequences, n), where all are equally long."""
        sizes = np.diff(self.starts)
        uniform = len(sizes) and sizes[0] > 0 and (sizes == sizes[0]).all()
        return self.tokens.reshape(len(sizes), -1) if uniform else None

    def padded(
        self, index: np.ndarray, length: int, width: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Chosen rows, cut to `length`: ids (b, n) and valid (b, n), None if nothing is padded.

        n is the longest row, or `width` where every batch has to have one shape; then valid is
        there for all batches or for none.
        """
        index = index if self.pick is None else self.pick[index]
        if self.table is not None and width in (None, min(length, self.table.shape[1])):
            return torch.from_numpy(self.table[index, :length].astype(np.int64)), None
        first = self.starts[index]
        sizes = np.minimum(self.starts[index + 1] - first, length)  # (b,)
        n = max(int(sizes.max(initial=1)), 1) if width is None else width
        offsets = np.arange(n)  # (n,)
        real = offsets < sizes[:, None]  # (b, n)
        places = np.where(real, first[:, None] + offsets, 0)
        ids = self.tokens[places].astype(np.int64)
        ids[~real] = 0
        whole = real.all() if width is None else self.shortest >= width
        return torch.from_numpy(ids), None if whole else torch.from_numpy(real)

    def padded_marks(self, index: np.ndarray, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """The marks of rows that `padded` gave in this shape (b, n); 0 at padding."""
        index = index if self.pick is None else self.pick[index]
        first, offsets = self.starts[index][:, None], np.arange(shape[1])
        real = offsets < self.starts[index + 1][:, None] - first  # (b, n)
        places = np.where(real, first + offsets, 0)
        return {
            name: torch.from_numpy(np.where(real, mark[places], np.zeros_like(mark[:1])))
            for name, mark in self.marks.items()
        }


@dataclass(frozen=True, eq=False)
class Examples:
    """A split: documents, their classes, and what else a task says about them."""

    rows: TokenRows
    length: int  # rows are cut to this
    labels: np.ndarray | None = None  # (rows,) int64
    second: TokenRows | None = None  # the other document of each pair
    groups: np.ndarray | None = None  # (rows,) int64: scores are also reported by group
    group_names: tuple[str, ...] = ()
    fixed: bool = False  # every batch is padded to `length`: one shape, one compiled graph

    def __post_init__(self) -> None:
        for name in ("labels", "second", "groups"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.rows):
                raise WeftError(
                    f"{name} has one entry for each row; got {len(value)} for {len(self.rows)} rows"
                )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that a batch can hold."""
        own = {"labels": self.labels, "groups": self.groups}
        both = self.rows.fingerprint, None if self.second is None else self.second.fingerprint
        return _hashed(own, *both)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> np.ndarray:
        """The labels (rows,), which this task has."""
        assert self.labels is not None
        return self.labels

    @property
    def others(self) -> TokenRows:
        """The second documents, which this task has."""
        assert self.second is not None
        return self.second

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) tokens of each row, both documents of a pair together."""
        own = np.minimum(self.rows.lengths, self.length)
        return own if self.second is None else own + np.minimum(self.second.lengths, self.length)

    @property
    def marks(self) -> set[str]:
        """What the tokens of this split say about themselves."""
        return {*self.rows.marks, *(self.second.marks if self.second is not None else ())}

    def batch(self, index: np.ndarray) -> Batch:
        """The rows of these numbers, on the CPU."""
        width = self.length if self.fixed else None
        x, valid = self.rows.padded(index, self.length, width)
        parts: dict[str, Any] = {"x": x, "valid": valid}
        parts["marks"] = self.rows.padded_marks(index, x.shape)
        if self.second is not None:
            parts["second"], parts["second_valid"] = self.second.padded(index, self.length, width)
            parts["second_marks"] = self.second.padded_marks(index, parts["second"].shape)
        if self.labels is not None:
            parts["y"] = torch.from_numpy(self.labels[index])
        if self.groups is not None:
            parts["group"] = torch.from_numpy(self.groups[index])
        return Batch(**parts)


def _hashed(arrays: Mapping[str, np.ndarray | None], *texts: str | None) -> str:
    """A hash of arrays by their names and values, about a second for each gigabyte."""
    found = hashlib.blake2b(repr(texts).encode(), digest_size=8)
    for name, array in sorted(arrays.items()):
        if array is not None:
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).view(np.uint8).data)
    return found.hexdigest()


def _array(sequence: bytes | np.ndarray | Sequence[int]) -> np.ndarray:
    if isinstance(sequence, bytes | bytearray):
        return np.frombuffer(sequence, dtype=np.uint8)
    return sequence if isinstance(sequence, np.ndarray) else np.asarray(sequence, dtype=np.int32)

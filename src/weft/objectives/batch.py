"""What an objective reads: some rows of data on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.layers.marks import Marks

MARKS = ("marks", "second_marks")  # the fields of a batch that hold marks


class ModelInputs(NamedTuple):
    """What a model reads of each row: inputs, which of them are real, and their marks."""

    ids: Tensor  # (b, n), or values (b, n, channels)
    valid: Tensor | None = None  # (b, n)
    marks: Marks | None = None  # (b, n) each

    @property
    def given(self) -> dict[str, Any]:
        """What a model takes besides the inputs."""
        return {"valid": self.valid, "marks": self.marks} if self.marks else {"valid": self.valid}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a task; `valid` is True where a token is real, None where all are."""

    x: Tensor  # ids (b, n), or values (b, n, channels)
    valid: Tensor | None = None  # (b, n)
    second: Tensor | None = None  # the other document of a pair: (b, m)
    second_valid: Tensor | None = None  # (b, m)
    y: Tensor | None = None  # classes (b,), or numbers
    marks: Marks = field(default_factory=dict)  # what mixers know of each token: (b, n) each
    second_marks: Marks = field(default_factory=dict)  # (b, m) each
    words: Tensor | None = None  # (b, n): which word of its row each token belongs to
    group: Tensor | None = None  # (b,): which group of the task a row belongs to, e.g. a position
    reach: tuple[int, ...] | None = None  # (b,): places of a row up to its last real one, or more

    def __len__(self) -> int:
        return len(self.x)

    @property
    def tokens(self) -> int:
        """Places of the batch, padding included: what the hardware works on."""
        return self.x.shape[0] * self.x.shape[1] + (
            0 if self.second is None else self.second.numel()
        )

    @property
    def given(self) -> dict[str, Any]:
        """What a model takes besides x: `model(batch.x, **batch.given)`."""
        return ModelInputs(self.x, self.valid, self.marks).given

    def documents(self) -> list[ModelInputs]:
        """What is read: one document of each row, or two where rows are pairs."""
        found = [ModelInputs(self.x, self.valid, self.marks)]
        if self.second is not None:
            found.append(ModelInputs(self.second, self.second_valid, self.second_marks))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """What the batch holds, by name; marks by "marks.is_global"."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        for kind in MARKS:
            held |= {f"{kind}.{name}": mark for name, mark in held.pop(kind).items()}
        return {name: value for name, value in held.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor], **changes: Any) -> Batch:
        """The batch with other tensors, under the names that `tensors` gives."""
        for kind in MARKS:
            names = [name for name in tensors if name.startswith(f"{kind}.")]
            changes[kind] = {name.removeprefix(f"{kind}."): tensors[name] for name in names}
        plain = {name: value for name, value in tensors.items() if "." not in name}
        return replace(self, **plain, **changes)

    def to(self, device: str | torch.device) -> Batch:
        """The same on another device; a copy from pinned memory does not wait."""
        moved = {name: t.to(device, non_blocking=True) for name, t in self.tensors().items()}
        return self.with_tensors(moved)

    def by_length(self, widths: int | None = None) -> Batch:
        """The rows of a padded batch on the CPU from short to long; their reach is known then.

        `widths`: a row reaches up to a multiple of its batch's width over this, or of 8 near it.
        """
        if self.valid is None:
            return self
        n = self.valid.shape[1]
        reach = (self.valid * torch.arange(1, n + 1)).amax(1).clamp(min=1)  # (b,)
        order = reach.argsort(stable=True)
        if widths is not None:
            each = 8 * -(-n // (8 * widths))
            reach = (-(-reach // each) * each).clamp(max=n)
        moved = {name: tensor[order] for name, tensor in self.tensors().items()}
        return self.with_tensors(moved, reach=tuple(reach[order].tolist()))

    def part(self, start: int, stop: int) -> Batch:
        """Rows start to stop − 1, without the places that none of them reaches, where known."""
        cut = {name: tensor[start:stop] for name, tensor in self.tensors().items()}
        if self.reach is None:
            return self.with_tensors(cut)
        reach = self.reach[start:stop]
        for name in cut:
            if name in ("x", "valid", "words") or name.startswith("marks."):
                cut[name] = cut[name][:, : max(reach)]
        return self.with_tensors(cut, reach=reach)

    def parts(self, count: int) -> Iterator[Batch]:
        """`count` parts of almost equal numbers of rows; none is empty."""
        count = min(count, len(self))
        edges = [len(self) * i // count for i in range(count + 1)]
        return (self.part(start, stop) for start, stop in pairwise(edges))


def unmarked(batch: Batch, objective: str, reason: str) -> Batch:
    """The batch, if it has no marks; objectives that cannot use marks refuse them."""
    marks = ", ".join(dict.fromkeys([*batch.marks, *batch.second_marks]))
    if marks:
        raise WeftError(f"{objective} takes no marks, and this batch has {marks}: {reason}")
    return batch

"""Marks: what a token says about itself besides its id, such as whether it is global.

A mixer names in its traits the marks it takes; each is a tensor (b, n), one value for each token.
Stacks, trunks and heads take all of them as one keyword, `marks={"is_global": mask}`, and hand each
to the mixers that know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from weft.errors import WeftError

Marks = Mapping[str, Tensor]  # name -> (b, n)


@dataclass(frozen=True)
class Mark:
    """A mark that a mixer takes."""

    name: str
    kind: Literal["boolean", "number"]
    about: str  # what its value says, e.g. "True where a token is global"
    causal: bool = True  # whether a causal mixer takes it too

    def check(self, value: Tensor, shape: tuple[int, ...]) -> None:
        """Refuse a tensor of another type or shape than (batch, length)."""
        check_shape(self.name, value, shape)
        if (value.dtype == torch.bool) != (self.kind == "boolean") or value.is_floating_point():
            kind = "boolean" if self.kind == "boolean" else "a whole number"
            way = "compare it first, mask > 0" if self.kind == "boolean" else "convert it, .long()"
            raise WeftError(f"{self.name} is {kind}, {self.about}; got {value.dtype}: {way}")


def check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a mark that has not one value for each token."""
    if tuple(value.shape) != tuple(shape):
        raise WeftError(f"{name} is (batch, length) = {tuple(shape)}; got {tuple(value.shape)}")


def moved(marks: Marks | None, order: Tensor) -> Marks | None:
    """The marks of tokens that moved: place i of a row now holds the token order[:, i]."""
    if not marks:
        return None
    for name, value in marks.items():
        check_shape(name, value, order.shape)
    return {name: value.gather(1, order) for name, value in marks.items()}


def rows_of(marks: Marks | None, rows: Tensor | slice) -> Marks | None:
    """The marks of these rows of the batch."""
    return {name: value[rows] for name, value in marks.items()} if marks else None


def refuse_marks(marks: Marks | None, reason: str) -> None:
    """Raise where marks are given and cannot be used."""
    if marks:
        raise WeftError(f"{', '.join(marks)}: {reason}")

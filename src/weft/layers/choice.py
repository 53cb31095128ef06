"""Discrete choices that recomputation has to repeat.

The backward pass can run a sublayer a second time instead of storing its activations. Rebuilt
inputs may differ in their last digits, so that an argmax picks another index: the gradient is then
that of another function. A mechanism that chooses passes its indices through a `ReplayableChoice`
of its own; code that runs the mechanism twice stores them with `ChoiceRecord`.

    chosen = self.choice(scores.argmax(-1))

Indices are stored as int32; outside `record` and `replay` nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ReplayableChoice(nn.Module):
    """Returns its indices; `record` also stores them, `replay` returns the stored ones instead."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Tensor] | None = None
        self.replayed: list[Tensor] | None = None

    def forward(self, chosen: Tensor) -> Tensor:
        """Integer indices of any shape -> those to use."""
        if self.replayed is not None:
            return self.replayed.pop(0).to(chosen.dtype)
        if self.recorded is not None:
            self.recorded.append(chosen.to(torch.int32))
        return chosen


class ChoiceRecord:
    """What every `ReplayableChoice` inside a module returned in one run, call by call."""

    def __init__(self, module: nn.Module) -> None:
        parts = [part for part in module.modules() if isinstance(part, ReplayableChoice)]
        self.recorded: list[tuple[ReplayableChoice, list[Tensor]]] = [(part, []) for part in parts]

    @contextmanager
    def record(self) -> Iterator[None]:
        """Store the choices made inside the `with`."""
        for part, indices in self.recorded:
            part.recorded = indices
        try:
            yield
        finally:
            for part, _ in self.recorded:
                part.recorded = None

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Make the recorded choices again inside the `with`, in their order."""
        for part, indices in self.recorded:
            part.replayed = list(indices)
        try:
            yield
        finally:
            for part, _ in self.recorded:
                part.replayed = None

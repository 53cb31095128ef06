"""Discrete choices that a second run of a forward repeats.

Backward can run a sublayer a second time instead of storing its activations. An argmax over numbers
that were rebuilt, and so differ in their last digits, may then fall on another index: another
function is differentiated than the one that ran. A mechanism that chooses passes its indices
through a `Choice` of its own; whoever runs it twice keeps them with `Choices`.

    chosen = self.choice(scores.argmax(-1))

Integers of 4 bytes are kept per choice; outside `record` and `replay` nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Choice(nn.Module):
    """Passes indices on; while a run is recorded it keeps them, in a replay it returns those."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] | None = None
        self.given: list[Tensor] | None = None

    def forward(self, chosen: Tensor) -> Tensor:
        """Integer indices of any shape -> those that count."""
        if self.given is not None:
            return self.given.pop(0).to(chosen.dtype)
        if self.kept is not None:
            self.kept.append(chosen.to(torch.int32))
        return chosen


class Choices:
    """What every `Choice` inside a module returned in one run, call by call."""

    def __init__(self, module: nn.Module) -> None:
        parts = [part for part in module.modules() if isinstance(part, Choice)]
        self.kept: list[tuple[Choice, list[Tensor]]] = [(part, []) for part in parts]

    @contextmanager
    def record(self) -> Iterator[None]:
        """Keep the choices made inside the `with`."""
        for part, kept in self.kept:
            part.kept = kept
        try:
            yield
        finally:
            for part, _ in self.kept:
                part.kept = None

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Make the recorded choices again inside the `with`, in their order."""
        for part, kept in self.kept:
            part.given = list(kept)
        try:
            yield
        finally:
            for part, _ in self.kept:
                part.given = None

"""Who wants to know how training goes: a listener. The library itself prints nothing.

Subclass `Progress` and override what interests you; `weft train` draws its bar with one.
"""

from __future__ import annotations

from typing import Any

from weft.training.run import Outcome, Run


class Progress:
    """Hears everything, does nothing."""

    def start(self, run: Run, step: int) -> None:
        """Training begins, or goes on after update `step`."""

    def stage(self, number: int, note: str) -> None:
        """A stage begins, counted from 0; `note` says which weights came over."""

    def step(self, step: int) -> None:
        """Update `step`, counted from 1, and all that is due after it is done."""

    def row(self, row: dict[str, Any]) -> None:
        """A row of metrics was written."""

    def note(self, text: str) -> None:
        """Something a person should know, e.g. a checkpoint that could not be read."""

    def end(self, outcome: Outcome) -> None:
        """Training ended, or was interrupted."""


class Several(Progress):
    """Tells several listeners."""

    def __init__(self, *listeners: Progress) -> None:
        self.listeners = listeners

    def start(self, run: Run, step: int) -> None:
        for each in self.listeners:
            each.start(run, step)

    def stage(self, number: int, note: str) -> None:
        for each in self.listeners:
            each.stage(number, note)

    def step(self, step: int) -> None:
        for each in self.listeners:
            each.step(step)

    def row(self, row: dict[str, Any]) -> None:
        for each in self.listeners:
            each.row(row)

    def note(self, text: str) -> None:
        for each in self.listeners:
            each.note(text)

    def end(self, outcome: Outcome) -> None:
        for each in self.listeners:
            each.end(outcome)

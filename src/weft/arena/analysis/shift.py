"""The shift test: what a model answers when everything moves, and nothing else changes.

    shift    the k oldest tokens are taken away, so that every other moves k places to the front
    cyclic   the sequence is turned by k places, so that the k oldest stand behind the most recent

A model that judges what happened, not at which place it stands, answers a shift almost as before:
reported are its score, and the mean and largest change of its scores for a document. Rows without
more than k real tokens keep their last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.objectives import Batch, Objective
from weft.objectives.classify import turned
from weft.training.evaluate import score
from weft.training.settings import PrecisionName


@dataclass(frozen=True)
class Move:
    """By how many places, and whether what leaves at the front comes back at the end."""

    by: int
    cyclic: bool = False

    def __post_init__(self) -> None:
        if self.by < 0:
            raise WeftError(f"a shift is by 0 or more places; got {self.by}")

    def __str__(self) -> str:
        return f"cyclic by {self.by:,}" if self.cyclic else f"shift by {self.by:,}"

    def of(self, batch: Batch) -> Batch:
        """The batch after the move; real tokens stand first in each row."""
        sizes = _sizes(batch)  # (b,)
        if self.cyclic:
            return turned(batch, self.by % sizes.clamp(min=1))
        kept = (sizes - self.by).clamp(min=1).minimum(sizes)
        batch = turned(batch, sizes - kept)
        n = batch.x.shape[1]
        valid = torch.arange(n, device=batch.x.device) < kept[:, None]  # (b, n)
        return batch.with_tensors(batch.tensors() | {"valid": valid})


@dataclass(frozen=True)
class Shifted:
    """What a model does after a move."""

    move: str
    score: float
    change: float | None  # mean over documents of the largest change of a document's scores
    largest: float | None

    def row(self) -> dict[str, Any]:
        """For a result file."""
        return {
            "move": self.move,
            "score": self.score,
            "mean change": self.change,
            "largest change": self.largest,
        }


def shift_test(
    model: Any,
    source: Iterable[Batch],
    objective: Objective,
    moves: Sequence[Move],
    precision: PrecisionName = "float32",
) -> list[Shifted]:
    """The score without a move, and after each; a source gives the same batches every time."""
    rows, plain = [], None
    for move in (None, *moves):
        watched: Any = _Watched(objective)
        found = score(model, _moved(source, move), watched, precision=precision)
        assert found is not None  # nothing stops it
        logits = torch.cat(watched.seen) if watched.seen else None
        plain = logits if move is None else plain
        change = None if logits is None or plain is None else (logits - plain).abs().amax(-1)
        rows.append(
            Shifted(
                move="none" if move is None else str(move),
                score=found.score,
                change=None if change is None else change.mean().item(),
                largest=None if change is None else change.max().item(),
            )
        )
    return rows


class _Watched:
    """An objective that keeps the scores of documents."""

    def __init__(self, objective: Any) -> None:
        self.objective, self.seen = objective, list[Tensor]()
        self.metric = objective.metric

    def loss(self, model: Any, batch: Batch, generator: torch.Generator) -> Any:
        found = self.objective.loss(model, batch, generator)
        if found.scores is not None:
            self.seen.append(found.scores.float().cpu())
        return found


def _moved(source: Iterable[Batch], move: Move | None) -> Iterator[Batch]:
    return (batch if move is None else move.of(batch) for batch in source)


def _sizes(batch: Batch) -> Tensor:
    """(b,) real tokens of each row."""
    if batch.second is not None:
        raise WeftError("the shift test moves one sequence for each row; this task has pairs")
    b, n = batch.x.shape[:2]
    if batch.valid is None:
        return torch.full((b,), n, device=batch.x.device)
    return batch.valid.sum(1)

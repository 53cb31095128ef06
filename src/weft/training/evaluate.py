"""Evaluation: a full pass over a split, with exact counts however ragged its last batch is.

Nothing here changes a training run: dropout is off, random numbers (masks, hashes) come from a seed
of their own, and the model is left in the mode it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.objectives import Batch, Loss, Objective
from weft.objectives.base import Metric, score_of
from weft.scale.team import Alone
from weft.training.data.seeds import derive
from weft.training.precision import Precision
from weft.training.scores.class_scores import MOST_CLASSES, ClassScores, ClassTally
from weft.training.scores.number_scores import NumberScores, NumberTally
from weft.training.scores.ranking import RankScores, RankTally
from weft.training.settings import PrecisionName


@dataclass(frozen=True)
class GroupScore:
    """The rows of one group of a split, e.g. those whose answer is at one depth."""

    name: str
    right: int
    count: int

    @property
    def accuracy(self) -> float:
        """Share of rows that are right."""
        return self.right / self.count


@dataclass(frozen=True)
class Score:
    """What a model reaches on a split."""

    metric: Metric
    score: float  # in the metric
    loss: float  # nats per item
    accuracy: float
    count: int  # items: documents, or predicted tokens
    groups: tuple[GroupScore, ...] = ()
    classes: ClassScores | None = None  # of classifiers
    numbers: NumberScores | None = None  # of regressions
    ranks: RankScores | None = None  # of classifiers with two classes

    def row(self) -> dict[str, Any]:
        """Flat, for a row of metrics; groups become `group <name>`."""
        groups = {f"group {group.name}": group.accuracy for group in self.groups}
        loss = self.loss if math.isfinite(self.loss) else None
        score = self.score if math.isfinite(self.score) else None
        return {"loss": loss, "score": score, "count": self.count, **groups}


@torch.no_grad()
def score(
    model: nn.Module,
    source: Iterable[Batch],
    objective: Objective,
    *,
    precision: PrecisionName = "float32",
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    team: Alone | None = None,
    loss_of: Any = None,
) -> Score | None:
    """The score of a model on all of a source, e.g. `Ordered(task.load("test"))`.

    None if `stop`, asked before every batch, says so. The ranks of a `team` share out the rows of
    each batch; `loss_of` is then the model as they spread it.
    """
    team = team or Alone()
    device = next(model.parameters()).device
    autocast = Precision(precision, device).autocast
    loss_of = loss_of or team.spread(model, objective, autocast)
    tally = _Tally(device)
    training = model.training
    model.eval()
    cuda = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(derive(seed, "evaluation"))
            generator = torch.Generator(device).manual_seed(derive(seed, "evaluation"))
            for batch in source:
                if stop():
                    return None
                own, counted = team.some_rows(batch)
                own = own.to(device)
                loss, _ = loss_of(own, generator)
                if counted:
                    tally.add(loss, own)
    finally:
        model.train(training)
    tally.join(team)
    return tally.score(objective.metric, getattr(source, "group_names", ()))


class _Tally:
    """Sums on the device, read once at the end."""

    def __init__(self, device: torch.device) -> None:
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(3, dtype=wide, device=device)  # total, count, right
        self.rows = torch.zeros(2, dtype=wide, device=device)  # rows, and those right as a whole
        self.hits: list[Tensor] = []
        self.groups: list[Tensor] = []
        self.classes: ClassTally | None = None
        self.numbers: NumberTally | None = None
        self.ranks: RankTally | None = None

    def add(self, loss: Loss, batch: Batch) -> None:
        self.sums += torch.stack([part.to(self.sums.dtype) for part in loss[:3]])
        scores = loss.scores
        if scores is not None and batch.y is not None:
            self._look_closer(scores, batch.y)
        if loss.hits is None:
            return
        self.rows += torch.stack([torch.ones_like(loss.hits), loss.hits]).sum(1).to(self.rows.dtype)
        if batch.group is not None:
            self.hits.append(loss.hits)
            self.groups.append(batch.group)

    def join(self, team: Alone) -> None:
        """Add what the other ranks have."""
        if not team.is_team:
            return
        self.sums, self.rows = team.total(self.sums), team.total(self.rows)
        device = self.sums.device
        parts = team.together([(self.hits, self.groups, self.classes, self.numbers)])
        self.hits = [hit.to(device) for hits, *_ in parts for hit in hits]
        self.groups = [group.to(device) for _, groups, *_ in parts for group in groups]
        tallies = [each for *_, each, _ in parts if each is not None]
        self.classes = tallies[0] if tallies else None
        for other in tallies[1:]:
            tallies[0].join(other)
        numbers = [each for *_, each in parts if each is not None]
        self.numbers = numbers[0] if numbers else None
        for other in numbers[1:]:
            numbers[0].join(other)

    def _look_closer(self, scores: Tensor, y: Tensor) -> None:
        if scores.shape[-1] == 1:
            self.numbers = self.numbers or NumberTally(scores)
            self.numbers.add(scores, y)
        elif scores.shape[-1] <= MOST_CLASSES:
            self.classes = self.classes or ClassTally(scores)
            self.classes.add(scores, y)
        if scores.shape[-1] == 2:
            self.ranks = self.ranks or RankTally()
            self.ranks.add(scores, y)

    def score(self, metric: Metric, names: tuple[str, ...]) -> Score:
        total, count, right = self.sums.tolist()
        if not count:
            raise WeftError("there was nothing to score: the source gave no items")
        loss = total / count
        accuracy = right / count
        rows, hits = self.rows.tolist()
        ranks = None if self.ranks is None else self.ranks.scores()
        if metric == "gini":
            value = _gini(ranks)
        else:
            value = score_of(metric, loss, accuracy, hits / rows if rows else None)
        classes = None if self.classes is None else self.classes.scores()
        numbers = None if self.numbers is None else self.numbers.scores()
        groups = self._by_group(names)
        return Score(metric, value, loss, accuracy, int(count), groups, classes, numbers, ranks)

    def _by_group(self, names: tuple[str, ...]) -> tuple[GroupScore, ...]:
        if not self.groups:
            return ()
        groups = torch.cat(self.groups).cpu()
        hits = torch.cat(self.hits).cpu()
        counts = torch.bincount(groups)
        right = torch.bincount(groups[hits], minlength=len(counts))
        return tuple(
            GroupScore(names[i] if i < len(names) else str(i), int(right[i]), int(count))
            for i, count in enumerate(counts.tolist())
            if count
        )


def _gini(ranks: RankScores | None) -> float:
    if ranks is None:
        raise WeftError("gini ranks two classes; this model has another number of them")
    if ranks.gini is None:
        raise WeftError("gini ranks two classes, and all of these rows are of one; score more rows")
    return ranks.gini

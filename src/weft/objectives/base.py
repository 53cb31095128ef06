"""What a model learns: an objective turns a model and a batch into a loss.

A loss is a *sum* over items (documents, or tokens) with the number of items beside it. So batches
of any raggedness add up: sum of totals / sum of counts is the mean over all items, in training over
the parts of a step, in evaluation over a split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.outputs import Linear, OutputConfig
from weft.models.heads import Pool
from weft.objectives.batch import Batch
from weft.registry import Registry

OBJECTIVES = Registry("objective")

Metric = Literal[
    "accuracy",
    "bits per byte",
    "bits per pixel",
    "token accuracy",
    "exact match",
    "mean squared error",
]
_RISING = ("accuracy", "token accuracy", "exact match")


class Loss(NamedTuple):
    """Sums over the items of a batch, on its device: nothing here waits for a GPU."""

    total: Tensor  # () float32 or wider: the sum of the items' losses, in nats
    count: Tensor  # () int64: items
    right: Tensor  # () int64: items whose best answer is the right one
    hits: Tensor | None = None  # (b,): which rows are right as a whole, where that means something


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a task asks of a head: classes of documents, or scores of tokens."""

    classes: int = 2
    pool: Pool = "mean"
    hidden: int | None = None
    trimmed: bool = False  # the last layer computes what the head reads alone
    tied: bool = True  # language models: scores use the table of the embedding
    output: OutputConfig = field(default_factory=Linear)  # language models: how tokens are scored


class Objective(Protocol):
    """A config in OBJECTIVES."""

    name: str
    metric: Metric

    def build(self, trunk: Any, head: Head) -> Any:
        """The config of the model that learns this, around a trunk (Encoder or Decoder)."""
        ...

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Loss:
        """The loss of this batch; what is drawn at random comes from `generator`."""
        ...


def higher_is_better(metric: Metric) -> bool:
    """The direction of a score."""
    return metric in _RISING


def score_of(metric: Metric, loss: float, accuracy: float, whole: float | None) -> float:
    """A score from the mean loss in nats, the share of right items and of rows right as a whole."""
    if metric == "exact match":
        if whole is None:
            raise WeftError("exact match counts rows that are right; this objective gives none")
        return whole
    if metric in _RISING:
        return accuracy
    return loss if metric == "mean squared error" else loss / math.log(2)


def output_of(head: Head | None, tied: bool) -> dict[str, Any]:
    """The settings of a language model's output; untied if the objective or the head says so."""
    head = head or Head()
    return {"tied": tied and head.tied, "output": head.output}


def counted(number: int, like: Tensor) -> Tensor:
    """A number known on the host as () int64 on the device of `like`."""
    return torch.full((), number, dtype=torch.int64, device=like.device)


def wide(scores: Tensor) -> Tensor:
    """Scores in float32, or wider if they are: losses are never taken in half precision."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))

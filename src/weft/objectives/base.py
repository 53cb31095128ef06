"""What a model learns: an objective turns a model and a batch into a loss.

A loss is a *sum* over items (documents, or tokens) with the number of items beside it. So batches
of any raggedness add up: sum of totals / sum of counts is the mean over all items, in training over
the parts of a step, in evaluation over a split.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from weft.config import config
from weft.errors import WeftError
from weft.layers.outputs import Linear, OutputConfig
from weft.metrics import MetricName as Metric
from weft.metrics import bits
from weft.metrics import metric as known
from weft.models import Decoder, Encoder
from weft.models.heads.document import Pool
from weft.objectives.batch import Batch
from weft.registry import Registry

OBJECTIVES = Registry("objective")
ObjectiveConfig = Annotated[Any, OBJECTIVES]  # a config, a table or a spec string


class Loss(NamedTuple):
    """Sums over the items of a batch, on its device: nothing here waits for a GPU."""

    total: Tensor  # () float32 or wider: the sum of the items' losses, in nats
    count: Tensor  # () int64: items
    right: Tensor  # () int64: items whose best answer is the right one
    hits: Tensor | None = None  # (b,): which rows are right as a whole, where that means something
    scores: Tensor | None = None  # (b, classes) or (b, 1) of documents, without a gradient


@config
class Head:
    """What a task needs of a head: classes of documents, or scores of tokens."""

    classes: int | None = None  # None: the task's, or 2
    pool: Pool = "mean"
    hidden: int | None = None
    trimmed: bool = False  # the last layer computes what the head reads alone
    tied: bool = True  # language models: scores use the table of the embedding
    output: OutputConfig = field(default_factory=Linear)  # language models: how tokens are scored

    def of_documents(self) -> dict[str, Any]:
        """The settings of a head that judges documents."""
        return {
            "classes": self.classes or 2,
            "pool": self.pool,
            "hidden": self.hidden,
            "trimmed": self.trimmed,
        }


class Objective(Protocol):
    """A config in OBJECTIVES."""

    name: str
    metric: Metric

    def build(self, trunk: Any, head: Head) -> Any:
        """The config of the model that learns this, around a trunk (Encoder or Decoder)."""
        ...

    def loss(self, model: Any, batch: Batch, generator: torch.Generator) -> Loss:
        """The loss of this batch; what is drawn at random comes from `generator`."""
        ...


def score_of(metric: Metric, loss: float, accuracy: float, whole: float | None) -> float:
    """A score from the mean loss in nats, the share of right items and of rows right as a whole."""
    if metric == "exact match":
        if whole is None:
            raise WeftError("exact match counts rows that are right; this objective gives none")
        return whole
    if known(metric).share:
        return accuracy
    return bits(loss) if known(metric).unit == "bits" else loss


def output_of(head: Head | None, tied: bool) -> dict[str, Any]:
    """The settings of a language model's output; untied if the objective or the head says so."""
    head = head or Head()
    return {"tied": tied and head.tied, "output": head.output}


def plain_trunk(trunk: Any, name: str) -> Any:
    """The trunk, if it is an encoder or a decoder and nothing more."""
    if type(trunk) not in (Encoder, Decoder):
        raise WeftError(
            f"{name} is learned by an encoder or a decoder; got the trunk {trunk.name}, whose "
            "tokens are not read one by one"
        )
    return trunk


def counted(number: int, like: Tensor) -> Tensor:
    """A number known on the host as () int64 on the device of `like`."""
    return torch.full((), number, dtype=torch.int64, device=like.device)


def wide(scores: Tensor) -> Tensor:
    """Scores in float32, or wider if they are: losses are never taken in half precision."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))

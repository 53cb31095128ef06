"""Distillation: a small model learns what a large one says, and what is true.

    loss = (1 − α) CE(y, s) + α T² KL(softmax(t / T) ‖ softmax(s / T)) + γ (1 − cos(h_s, h_t))

t, s: scores of teacher and student; h: their last hidden states, averaged over real tokens. Each
term counts once per item (document, or predicted token), as in the objective `of` that is
distilled. T² keeps the size of the gradient as T grows. The student starts as the teacher with
every second layer (or every L_t / L_s-th) left out, unless start="fresh". Evaluation scores the
student alone. DistilBERT's three losses are temperature=2, alpha=5/7, cosine=1/7.

Papers: Hinton et al. 2015, https://arxiv.org/abs/1503.02531; Sanh et al. 2019, sections 2 and 3,
https://arxiv.org/abs/1910.01108
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.layers.marks import Marks
from weft.models import load, prune_layers
from weft.models.registry import TrunkModel
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, ObjectiveConfig, wide
from weft.objectives.batch import Batch, ModelInputs
from weft.objectives.causal_lm import CausalLM, summed, token_loss
from weft.objectives.classify import Classify
from weft.objectives.masked_lm import MaskedLM, hiding
from weft.objectives.targets.words import word_numbers


class Question(NamedTuple):
    """What both models are shown, and which of their answers count."""

    shown: Tensor  # (b, n) or (b, n, channels)
    valid: Tensor | None  # (b, n)
    targets: Tensor  # (b, m)
    chosen: Tensor | None  # (b, m); None: all
    shifted: bool = False  # logits at i are about token i + 1
    marks: Marks | None = None  # (b, n) each

    @property
    def given(self) -> dict[str, Any]:
        """What both models take besides `shown`."""
        return ModelInputs(self.shown, self.valid, self.marks).given

    def answers(self, scores: Tensor) -> Tensor:
        """Scores of a model as (b, m, classes)."""
        scores = scores[:, None] if scores.dim() == 2 else scores
        return scores[:, :-1] if self.shifted else scores


@OBJECTIVES.register("distill")
@dataclass(frozen=True, kw_only=True)
class Distill:
    """Learn from a saved model."""

    teacher: str  # folder of a saved model, e.g. runs/large/best
    of: ObjectiveConfig = field(default_factory=Classify)  # classify, causal_lm or masked_lm
    alpha: float = 0.5  # weight of the teacher's distribution
    temperature: float = 2.0
    cosine: float = 0.0  # γ, weight of the hidden states; needs one width
    start: Literal["teacher", "fresh"] = "teacher"  # the student's first weights

    def __post_init__(self) -> None:
        if not isinstance(self.of, Classify | CausalLM | MaskedLM):
            raise WeftError(f"distill is of classify, causal_lm or masked_lm; got of={self.of}")
        if not 0.0 <= self.alpha <= 1.0 or not self.temperature > 0 or self.cosine < 0:
            raise WeftError(
                "alpha is a share, temperature above 0, cosine 0 or more; got "
                f"alpha={self.alpha}, temperature={self.temperature}, cosine={self.cosine}"
            )

    @property
    def metric(self) -> Metric:
        """That of the inner objective."""
        return self.of.metric

    def build(self, trunk: Any, head: Head | None = None) -> Any:
        """The student: what the inner objective builds."""
        return self.of.build(trunk, head or Head())

    def initialise(self, model: TrunkModel) -> None:
        """Give a new student the teacher's weights, with layers left out evenly."""
        if self.start == "fresh":
            return
        teacher = self._teacher(model)
        many, few = len(teacher.trunk.stack.layers), len(model.trunk.stack.layers)
        if few > many:
            raise WeftError(f"the teacher has {many} layers, the student {few}; set start='fresh'")
        smaller = prune_layers(teacher, (1 + j * many // few for j in range(few)))
        given, own = smaller.state_dict(), model.state_dict()
        for name in sorted(given.keys() | own.keys()):
            shapes = [tuple(s[name].shape) if name in s else None for s in (given, own)]
            if shapes[0] != shapes[1]:
                raise WeftError(
                    f"the student cannot start as its teacher: {name} is {shapes[0]} there and "
                    f"{shapes[1]} here; give both the same widths, or set start='fresh'"
                )
        model.load_state_dict(given)

    def loss(self, model: TrunkModel, batch: Batch, generator: torch.Generator) -> Loss:
        """All terms in training, the inner objective's in evaluation."""
        if not model.training:
            return self.of.loss(model, batch, generator)
        teacher = self._teacher(model)
        losses = [self._taught(model, teacher, q) for q in self._questions(model, batch, generator)]
        return losses[0] if len(losses) == 1 else summed(losses)

    def _questions(
        self, model: TrunkModel, batch: Batch, generator: torch.Generator
    ) -> Iterator[Question]:
        """The inputs and targets of the inner objective."""
        if isinstance(self.of, Classify):
            if batch.y is None:
                raise WeftError("this batch has no classes; distill causal_lm or masked_lm instead")
            yield Question(batch.x, batch.valid, batch.y[:, None], None, marks=batch.marks)
            return
        for ids, valid, marks in batch.documents():
            if isinstance(self.of, CausalLM):
                known = None if valid is None else valid[:, 1:] & valid[:, :-1]  # (b, n − 1)
                yield Question(ids, valid, ids[:, 1:], known, shifted=True, marks=marks)
            else:
                numbers = word_numbers(batch, ids, valid, self.of.words)
                shown, chosen = self.of.corrupt(ids, valid, hiding(model), generator, numbers)
                yield Question(shown, valid, ids, chosen, marks=marks)

    def _taught(self, model: TrunkModel, teacher: TrunkModel, question: Question) -> Loss:
        """All terms for one question."""
        with hidden_of(model) as own:
            scores = question.answers(model(question.shown, **question.given))
        with torch.no_grad(), hidden_of(teacher) as given:
            said = question.answers(teacher(question.shown, **question.given))
        if said.shape != scores.shape:
            raise WeftError(
                f"teacher and student answer alike: got scores {tuple(said.shape)} of the teacher "
                f"and {tuple(scores.shape)} of the student"
            )
        true = token_loss(scores, question.targets, question.chosen)
        soft = divergence(scores, said, question.chosen, self.temperature)
        total = (1 - self.alpha) * true.total + self.alpha * soft
        if self.cosine:
            apart = distance(own[-1], given[-1], question.valid)
            total = total + self.cosine * apart * true.count
        return true._replace(total=total)

    def _teacher(self, model: TrunkModel) -> TrunkModel:
        tensor = next(model.parameters())
        weights = Path(self.teacher) / "model.safetensors"
        stamp = weights.stat().st_mtime_ns if weights.is_file() else 0
        teacher = _loaded(self.teacher, stamp, tensor.device)
        if isinstance(self.of, MaskedLM) and teacher.mask != model.mask:
            raise WeftError(
                "teacher and student are shown the same text, so one id hides tokens from both; "
                f"got {teacher.mask} of the teacher {self.teacher}, {model.mask} of the student"
            )
        return teacher


def divergence(scores: Tensor, said: Tensor, chosen: Tensor | None, temperature: float) -> Tensor:
    """T² KL(teacher ‖ student), summed over chosen (b, m) of scores (b, m, classes)."""
    own = (wide(scores) / temperature).log_softmax(-1)  # (b, m, classes)
    target = (wide(said) / temperature).log_softmax(-1)
    each = F.kl_div(own, target, reduction="none", log_target=True).sum(-1)  # (b, m)
    each = each if chosen is None else each.masked_fill(~chosen, 0.0)
    return temperature**2 * each.sum()


def distance(own: Tensor, given: Tensor, valid: Tensor | None) -> Tensor:
    """1 − cos of hidden states (b, g + n, c), averaged over real tokens and registers."""
    if own.shape != given.shape:
        raise WeftError(
            "hidden states are compared channel by channel: teacher and student have one width, "
            f"and as many registers; got {tuple(given.shape)} and {tuple(own.shape)}"
        )
    apart = 1 - F.cosine_similarity(wide(own), wide(given), dim=-1)  # (b, g + n)
    if valid is None:
        return apart.mean()
    real = F.pad(valid, (own.shape[1] - valid.shape[1], 0), value=True)  # (b, g + n)
    return apart.masked_fill(~real, 0.0).sum() / real.sum()


@contextmanager
def hidden_of(model: TrunkModel) -> Iterator[list[Tensor]]:
    """What leaves the model's stack, (b, g + n, c), of each forward inside the `with`."""
    seen: list[Tensor] = []
    handle = model.trunk.stack.register_forward_hook(lambda *call: seen.append(call[-1]))
    try:
        yield seen
    finally:
        handle.remove()


@lru_cache(maxsize=2)
def _loaded(folder: str, stamp: int, device: torch.device) -> TrunkModel:
    return cast(TrunkModel, load(folder, device).requires_grad_(False))

"""Sequence to sequence: write a target for a source, token by token.

    loss = −Σ_t [(1 − ε) log p(y_t | y_<t, x) + ε/V Σ_v log p(v | y_<t, x)]   over y and its end

x is the batch's first document, y the second; ε is the label smoothing. Two ids beyond the task's
own mark the end (`vocab`) and the start (`vocab + 1`) of a target. The decoder has `decoder_layers`
of its own: 1 under a deep encoder makes writing cheap (Kasai et al. 2020,
https://arxiv.org/abs/2006.10369).

A row is right as a whole if every token is, each from the right ones before it. Greedy decoding
then writes exactly this row, and no other one: so "exact match" needs no decoding.

Papers: Vaswani et al. 2017, sections 3 and 5.4, https://arxiv.org/abs/1706.03762
Mixers: the encoder's reads both ways; the decoder's is causal and may be another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.models import LanguageModel
from weft.models.heads.language_model import LanguageModelModule
from weft.objectives.base import OBJECTIVES, Head, Loss, output_of, wide
from weft.objectives.batch import Batch, ModelInputs
from weft.objectives.targets.two_sided import aligned, second_of, two_sided


@OBJECTIVES.register("sequence_to_sequence")
@dataclass(frozen=True, kw_only=True)
class SequenceToSequence:
    """Cross-entropy of the target's tokens, teacher forced."""

    smoothing: float = 0.1  # share of the probability that the loss spreads over all tokens
    decoder_layers: int | None = None  # None: as many as the encoder has
    decoder_mixer: str = ""  # a spec; "": the encoder's
    metric: Literal["token accuracy", "exact match"] = "token accuracy"
    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)
        check_choice("metric", self.metric, ("token accuracy", "exact match"))

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """An encoder-decoder with two more rows in its table."""
        both = two_sided(trunk, 2, self.decoder_layers, self.decoder_mixer, longer=1)
        return LanguageModel(trunk=both, **output_of(head, self.tied))

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the target's tokens and its end."""
        ids, valid = second_of(batch, self.name)
        lesson = taught(model, ids, valid)
        return lesson_loss(model, batch.documents()[0], lesson, self.smoothing)


class Lesson(NamedTuple):
    """What a decoder reads, what it has to say there, and where: all (b, m + 1)."""

    shown: Tensor
    wanted: Tensor
    real: Tensor


def ends_of(model: LanguageModelModule) -> tuple[int, int]:
    """The ids that end and start a target of this model."""
    return model.last_id - 1, model.last_id


def taught(model: LanguageModelModule, ids: Tensor, valid: Tensor | None) -> Lesson:
    """The target ids (b, m), each shown after the ones before it."""
    end, start = ends_of(model)
    ids, real = aligned(ids, valid)
    length = real.sum(1, keepdim=True)  # (b, 1)
    place = torch.arange(ids.shape[1] + 1, device=ids.device)  # (m + 1,)
    wanted = torch.where(place == length, end, F.pad(ids, (0, 1)))
    shown = F.pad(wanted[:, :-1], (1, 0), value=start)
    return Lesson(shown.masked_fill(place > length, end), wanted, place <= length)


def lesson_loss(
    model: LanguageModelModule, source: ModelInputs, lesson: Lesson, smoothing: float
) -> Loss:
    """The loss of a lesson, given the source (b, n)."""
    given = {f"source_{name}": value for name, value in source.given.items()}
    given |= {"valid": lesson.real, "source": source.ids}
    if model.fused and not smoothing:
        loss, best = model(lesson.shown, **given, targets=lesson.wanted, chosen=lesson.real)
        total = loss.sum()
    else:
        scores = model(lesson.shown, **given)  # (b, m + 1, vocab)
        best = scores.detach().argmax(-1)  # (b, m + 1)
        wanted = lesson.wanted.masked_fill(~lesson.real, -100)
        total = F.cross_entropy(
            wide(scores).flatten(0, 1),
            wanted.flatten(),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=smoothing,
        )
    right = (best == lesson.wanted) | ~lesson.real  # (b, m + 1)
    return Loss(total, lesson.real.sum(), (right & lesson.real).sum(), right.all(1))


def check_smoothing(smoothing: float) -> None:
    """Refuse what is not a share."""
    if not 0.0 <= smoothing < 1.0:
        raise WeftError(f"smoothing is a share in [0, 1); got smoothing={smoothing}")


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not among the known ones."""
    if value not in known:
        raise WeftError(f"{name} is one of {', '.join(map(repr, known))}; got {name}={value!r}")

"""Span corruption: sentinels replace spans of a text, and the model writes the spans.

    text       the quick brown fox jumps over the lazy dog
    input      the <0> fox jumps <1> lazy dog
    target     <0> quick brown <1> over the <end>

A share `rate` of the tokens is hidden in spans of `mean` tokens on average: N = round(rate · n)
hidden tokens in k = round(N / mean) spans, whose lengths, like the lengths of what stays between
them, are drawn evenly among all ways to cut N tokens into k parts. A text begins with what stays.
Ids beyond the task's own: `vocab` + i for sentinel i, then the end, then the start of a target.

Papers: Raffel et al. 2019, T5, section 3.1.4, https://arxiv.org/abs/1910.10683 (rate 0.15, mean 3);
for bytes Xue et al. 2021, ByT5, section 3, https://arxiv.org/abs/2105.13626 (mean 20, an encoder
three times as deep as the decoder)
Mixers: as in `sequence_to_sequence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.models import LanguageModel
from weft.models.heads.language_model import LanguageModelModule
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, output_of
from weft.objectives.batch import Batch, ModelInputs, unmarked
from weft.objectives.causal_lm import summed
from weft.objectives.sequence_to_sequence import check_smoothing, ends_of, lesson_loss, taught
from weft.objectives.targets.spans import Widths, corrupted, noise_spans
from weft.objectives.targets.two_sided import aligned, two_sided


@OBJECTIVES.register("span_corruption")
@dataclass(frozen=True, kw_only=True)
class SpanCorruption:
    """Cross-entropy of the hidden spans, written one after another."""

    rate: float = 0.15  # share of tokens that are hidden
    mean: float = 3.0  # tokens of a span, on average
    sentinels: int = 100  # most spans of a row
    smoothing: float = 0.0
    decoder_layers: int | None = None  # None: as many as the encoder has
    decoder_mixer: str = ""  # a spec; "": the encoder's
    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]
    metric: ClassVar[Metric] = "token accuracy"
    takes_marks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < 1.0:
            raise WeftError(f"rate is a share in (0, 1); got rate={self.rate}")
        if self.mean < 1.0 or self.sentinels < 1:
            raise WeftError(
                "a span has at least one token, and there is at least one sentinel; "
                f"got mean={self.mean}, sentinels={self.sentinels}"
            )
        check_smoothing(self.smoothing)

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """An encoder-decoder with rows for the sentinels, the end and the start."""
        rows = self.sentinels + 2
        both = two_sided(trunk, rows, self.decoder_layers, self.decoder_mixer, longer=2)
        return LanguageModel(trunk=both, **output_of(head, self.tied))

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the targets' tokens, of both documents where rows are pairs."""
        losses = []
        reason = "tokens leave the text and others move up; pretrain with masked_lm"
        for ids, valid, _ in unmarked(batch, self.name, reason).documents():
            (source, source_valid), (target, target_valid) = self.corrupt(
                ids, valid, ends_of(model)[0] - self.sentinels, generator
            )
            lesson = taught(model, target, target_valid)
            # A row without tokens has nothing to teach.
            lesson = lesson._replace(real=lesson.real & target_valid.any(1, keepdim=True))
            source = ModelInputs(source, source_valid)
            losses.append(lesson_loss(model, source, lesson, self.smoothing))
        return summed(losses)

    def corrupt(
        self, ids: Tensor, valid: Tensor | None, first: int, generator: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Inputs and targets, each ids (b, n') and where they are real; `first` is sentinel 0."""
        ids, real = aligned(ids, valid)
        room = Widths.of(ids.shape[1], self.rate, self.mean)
        if room.spans > self.sentinels:
            raise WeftError(
                f"{ids.shape[1]} tokens have up to {room.spans} spans, and each needs a sentinel; "
                f"got sentinels={self.sentinels}: raise it, or mean={self.mean}"
            )
        noise = noise_spans(real.sum(1), self.rate, self.mean, room, generator)  # (b, n)
        return corrupted(ids, real, noise, first, room)


def restored(source: Tensor, target: Tensor, first: int, sentinels: int) -> Tensor:
    """The text (n,) that an input (n',) and a target (m,), without padding or end, were made of."""
    hidden: dict[int, list[int]] = {}
    spans, current = target.tolist(), None
    for token in spans:
        if first <= token < first + sentinels:
            current = hidden.setdefault(token, [])
        elif current is None:
            raise WeftError(f"a target begins with a sentinel, {first} or above; got {token}")
        else:
            current.append(token)
    text: list[int] = []
    for token in source.tolist():
        text += hidden.get(token, []) if first <= token < first + sentinels else [token]
    return torch.tensor(text, dtype=source.dtype)

"""Masked prediction of units of sound: HuBERT's first iteration.

    frames are hidden in spans of `span`, each frame begins one with probability `rate`;
    loss = −Σ log p(unit_i | the other frames) over the hidden frames i

Units are found by k-means on the cepstral coefficients of the training sounds, before training
(`weft.arena.tasks.sound.units`); a batch holds them as `second`, (b, frames). At least one frame of
each sound is hidden. As a first phase before one of classification it is pre-training.

Paper: Hsu et al. 2021, HuBERT, sections II-B and II-C, https://arxiv.org/abs/2106.07447
Differs: one iteration, whose units are those of the coefficients; later ones of the paper take
units of a layer of the model before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.models import UnitPredictor, UnitPredictorModule, Waveform
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, wide
from weft.objectives.batch import Batch, unmarked


@OBJECTIVES.register("masked_units")
@dataclass(frozen=True, kw_only=True)
class MaskedUnits:
    """Cross-entropy of the units of hidden frames; its score is the accuracy on them."""

    units: int = 100
    rate: float = 0.08  # probability that a span begins at a frame
    span: int = 10  # frames that it hides
    width: int = 256  # of the space in which frames and units are compared
    temperature: float = 0.1

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0 or self.span < 1 or self.units < 2:
            raise WeftError(
                "rate is a probability in (0, 1], span at least 1, units at least 2; got "
                f"rate={self.rate}, span={self.span}, units={self.units}"
            )

    def build(self, trunk: Any, head: Head | None = None) -> UnitPredictor:
        """A head that scores units, around an encoder of raw samples."""
        if not isinstance(trunk, Waveform):
            raise WeftError(
                "masked_units hides frames of raw samples: model.trunk.name = 'waveform'; got "
                f"{trunk.name!r}"
            )
        return UnitPredictor(
            trunk=trunk, units=self.units, width=self.width, temperature=self.temperature
        )

    def loss(self, model: UnitPredictorModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the hidden frames."""
        unmarked(batch, self.name, "marks are of samples, and units of frames")
        if batch.second is None:
            raise WeftError(
                "this batch has no units; train from settings, which find them, or give "
                "Batch(second=...), (b, frames)"
            )
        real = model.trunk.rows_valid(batch.valid)  # (b, m)
        if real is None:
            m = model.config.trunk.front.frames(batch.x.shape[1])
            real = torch.ones(len(batch), m, dtype=torch.bool, device=batch.x.device)
        hidden = spans(real, self.rate, self.span, generator)
        scores = wide(model(batch.x, valid=batch.valid, hidden=hidden))  # (b, m, units)
        units = batch.second[:, : scores.shape[1]].masked_fill(~hidden, -1)
        flat, wanted = scores.flatten(0, 1), units.flatten()
        total = F.cross_entropy(flat, wanted, reduction="sum", ignore_index=-1)
        right = (flat.detach().argmax(-1) == wanted) & (wanted >= 0)
        return Loss(total, hidden.sum(), right.sum())


def spans(real: Tensor, rate: float, span: int, generator: torch.Generator) -> Tensor:
    """Which of the real frames (b, m), first in their rows, are hidden; at least one of each."""
    b, m = real.shape
    chance = torch.rand(b, m + 1, generator=generator, device=real.device)
    counts = real.sum(1)  # (b,)
    one = (chance[:, m] * counts).long().clamp(max=m - 1)
    begins = chance[:, :m] < rate
    begins.scatter_(1, one[:, None], True)
    begun = (begins & real).long().cumsum(1)
    before = F.pad(begun, (span, 0))[:, :m]  # begun `span` frames earlier
    return (begun > before) & real

"""Pixel language modelling: a picture as a row of tokens: palette colours, greys, or RGB bytes.

    causal:   loss = −Σ_t log p(x_t | start, x_<t)    over all pixels, in raster order
    masked:   loss = −Σ log p(x_i | the others)       over a share `rate`, shown as masks

One id beyond the palette, `vocab`, is the start of a picture (causal) or the mask (masked); it is
never predicted. `unit` names what a token is: a pixel, or one of the three dimensions of a pixel,
where pictures are RGB bytes. Then the score is bits per dimension, nats / (ln 2 · 3 · pixels).
What the layers have learned is told by `weft.training.linear_probe`; pictures are drawn by
`weft.generate.pictures`; palettes are made by `weft.arena.data.palette`.

Paper: Chen et al. 2020, Generative Pretraining from Pixels, section 2,
https://openai.com/index/image-gpt/
Mixers: causal ones, or any that reads both ways for kind="masked".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.layers.marks import Marks
from weft.models import Decoder, LanguageModel
from weft.models.heads.language_model import LanguageModelModule
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, plain_trunk
from weft.objectives.batch import Batch, ModelInputs, unmarked
from weft.objectives.causal_lm import token_loss
from weft.objectives.masked_lm import all_real, with_mask_row
from weft.objectives.sequence_to_sequence import check_choice
from weft.objectives.targets.two_sided import aligned


@OBJECTIVES.register("pixel_lm")
@dataclass(frozen=True, kw_only=True)
class PixelLM:
    """Cross-entropy of pixels: of each after those before it, or of hidden ones."""

    kind: Literal["causal", "masked"] = "causal"
    rate: float = 0.15  # share of pixels that are hidden, where kind="masked"
    tied: bool = False  # scores use the table of the embedding
    unit: Literal["pixel", "dimension"] = "pixel"  # what a token is

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("causal", "masked"))
        check_choice("unit", self.unit, ("pixel", "dimension"))
        if not 0.0 < self.rate <= 1.0:
            raise WeftError(f"rate is a share in (0, 1]; got rate={self.rate}")

    @property
    def takes_marks(self) -> bool:
        """Where the pixels that it shows stay in their places."""
        return self.kind == "masked"

    @property
    def metric(self) -> Metric:
        """Bits per pixel or dimension; of hidden pixels the share that is right."""
        if self.kind == "masked":
            return "accuracy"
        return "bits per pixel" if self.unit == "pixel" else "bits per dimension"

    def build(self, trunk: Any, head: Head | None = None) -> LanguageModel:
        """A language model with one row more than there are colours."""
        made = with_mask_row(self.name, trunk, self.tied, head)
        if self.kind == "masked":
            return made
        trunk = plain_trunk(made.trunk, self.name)
        decoder = Decoder(embedding=trunk.embedding, stack=trunk.stack)
        return dataclasses.replace(made, trunk=decoder)

    def read(self, model: LanguageModelModule, batch: Batch) -> Batch:
        """The batch as the model reads whole pictures: behind their start, where it is causal."""
        if self.kind == "masked" or batch.valid is not None:
            return batch
        return dataclasses.replace(batch, x=after_start(batch.x, model.last_id))

    def loss(self, model: LanguageModelModule, batch: Batch, generator: torch.Generator) -> Loss:
        """Summed over the pixels that are predicted."""
        extra = model.last_id
        if self.kind == "causal":
            unmarked(batch, self.name, "the pixels it shows are moved by one; use kind='masked'")
            ids, real = aligned(batch.x, batch.valid)
            valid = None if batch.valid is None else real
            return token_loss(pixel_scores(model, after_start(ids, extra), valid), ids, valid)
        ids, valid = batch.x, batch.valid
        chosen = torch.rand(ids.shape, generator=generator, device=ids.device) < self.rate
        chosen = chosen & all_real(ids, valid)
        scores = pixel_scores(model, torch.where(chosen, extra, ids), valid, batch.marks)
        return token_loss(scores, ids, chosen)


def after_start(ids: Tensor, start: int) -> Tensor:
    """What a causal model reads: the start, then all pixels but the last, (b, n) -> (b, n)."""
    return F.pad(ids[:, :-1], (1, 0), value=start)


def pixel_scores(
    model: LanguageModelModule, ids: Tensor, valid: Tensor | None, marks: Marks | None = None
) -> Tensor:
    """Scores of the palette's colours alone: (b, n, colours)."""
    return model(ids, **ModelInputs(ids, valid, marks).given)[..., :-1]

"""Conditional masked language modelling: translation that writes all tokens at once.

    of a target's N tokens a number uniform in 1 … N is masked;
    loss = −Σ log p(y_i | the others, x) over the masked i − weight · Σ log p(N | x)

x is the batch's first document, y the second. Inference is `weft.models.heads.mask_predict`. Tokens
are label-smoothed as in `sequence_to_sequence`. A deep encoder with decoder_layers=1 makes an
iteration cheap. Report such models with and without distilled targets: they profit much from them.

Paper: Ghazvininejad et al. 2019, section 2.2, https://arxiv.org/abs/1904.09324
Mixers: both read both ways.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.models.heads.conditional_masked import ConditionalMasked, ConditionalMaskedModule
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, output_of, wide
from weft.objectives.batch import Batch
from weft.objectives.sequence_to_sequence import check_smoothing
from weft.objectives.targets.two_sided import aligned, second_of, two_sided


@OBJECTIVES.register("conditional_masked_lm")
@dataclass(frozen=True, kw_only=True)
class ConditionalMaskedLM:
    """Cross-entropy of masked target tokens and of the target's length."""

    smoothing: float = 0.1  # share of the probability that the loss spreads over all tokens
    weight: float = 0.1  # of the length's loss
    decoder_layers: int | None = None  # None: as many as the encoder has
    decoder_mixer: str = ""  # a spec; "": the encoder's
    tied: bool = True  # scores use the table of the embedding

    name: ClassVar[str]
    metric: ClassVar[Metric] = "token accuracy"

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)
        if self.weight < 0:
            raise WeftError(f"weight is 0 or more; got weight={self.weight}")

    def build(self, trunk: Any, head: Head | None = None) -> ConditionalMasked:
        """An encoder-decoder with a row for the mask token, and a register for the length."""
        longest = trunk.stack.frame.length
        if longest is None:
            raise WeftError(
                "the length is one of finitely many classes; give the trunk's Frame(length=...)"
            )
        both = two_sided(trunk, 1, self.decoder_layers, self.decoder_mixer)
        registers = max(1, trunk.embedding.registers)
        embedding = dataclasses.replace(both.encoder.embedding, registers=registers)
        encoder = dataclasses.replace(both.encoder, embedding=embedding)
        both = dataclasses.replace(both, encoder=encoder)
        return ConditionalMasked(trunk=both, longest=longest, **output_of(head, self.tied))

    def loss(
        self, model: ConditionalMaskedModule, batch: Batch, generator: torch.Generator
    ) -> Loss:
        """Summed over the masked tokens; the rows' lengths add to the total alone."""
        ids, real = aligned(*second_of(batch, self.name))
        hidden = masked_part(real, generator)  # (b, m)
        encoded = model.encode(batch.x, batch.valid, batch.marks)
        scores = model.decode(ids.masked_fill(hidden, model.mask), encoded, real)
        tokens = F.cross_entropy(
            wide(scores).flatten(0, 1),
            ids.masked_fill(~hidden, -100).flatten(),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        lengths = F.cross_entropy(wide(encoded.lengths), real.sum(1), reduction="sum")
        right = (scores.detach().argmax(-1) == ids) & hidden
        return Loss(tokens + self.weight * lengths, hidden.sum(), right.sum())


def masked_part(real: Tensor, generator: torch.Generator) -> Tensor:
    """Which tokens are masked: 1 to all of the real ones (b, m), each number as likely."""
    device, count = real.device, real.sum(1)  # (b,)
    chance = torch.rand(len(real), generator=generator, device=device, dtype=torch.float64)
    number = 1 + (chance * count).long()  # (b,)
    keys = torch.rand(real.shape, generator=generator, device=device).masked_fill(~real, 2.0)
    return (keys.argsort(1).argsort(1) < number[:, None]) & real

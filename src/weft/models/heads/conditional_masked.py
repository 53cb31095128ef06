"""Conditional masked language models: fill the gaps of a target, given its source.

    scores = output(decoder(target with masks, context = encoder(source)))
    length = W · encoder's first register + b         scores of the lengths 0 to `longest`

The decoder reads its target both ways, so all of its tokens can be written at once: that needs the
length, which the first register of the encoder predicts. The mask token is the last id. `trunk` is
an EncoderDecoder in shape; its decoder is built without hiding the future.

Paper: Ghazvininejad et al. 2019, Mask-Predict, section 2, https://arxiv.org/abs/1904.09324
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.marks import Marks
from weft.layers.outputs import Linear, OutputConfig
from weft.layers.padding import refuse_mask
from weft.models.heads.document import INITIAL_STD
from weft.models.registry import MODELS, TrunkModel
from weft.models.trunks.encoder import Trunk
from weft.models.trunks.encoder_decoder import EncoderDecoder


@MODELS.register("conditional_masked")
@dataclass(frozen=True, kw_only=True)
class ConditionalMasked:
    """Writes all tokens of a target at once, and again where it is unsure."""

    trunk: EncoderDecoder
    longest: int  # target, in tokens
    tied: bool = True  # scores use the table of the decoder's embedding
    output: OutputConfig = field(default_factory=Linear)

    def __post_init__(self) -> None:
        if self.trunk.embedding.vocab is None:
            raise WeftError(
                "targets are made of tokens, so the decoder's embedding has a vocab; "
                f"got channels={self.trunk.embedding.channels}"
            )
        if self.trunk.encoder.embedding.registers < 1 or self.trunk.embedding.registers:
            raise WeftError(
                "the encoder's first register predicts the length, and the decoder has none; got "
                f"registers={self.trunk.encoder.embedding.registers} and "
                f"{self.trunk.embedding.registers}"
            )
        if self.longest < 1:
            raise WeftError(f"longest is at least 1 token; got longest={self.longest}")
        self.output.check(self.trunk.embedding, self.tied)

    def build(self) -> ConditionalMaskedModule:
        return ConditionalMaskedModule(self)


class Encoded(NamedTuple):
    """A source as the decoder reads it."""

    context: Tensor  # (b, m, c)
    valid: Tensor | None  # (b, m)
    lengths: Tensor  # (b, longest + 1): scores of the target's length

    def repeated(self, times: int) -> Encoded:
        """Each row `times` times, its copies adjacent."""
        valid = None if self.valid is None else self.valid.repeat_interleave(times, 0)
        return Encoded(
            self.context.repeat_interleave(times, 0),
            valid,
            self.lengths.repeat_interleave(times, 0),
        )


class BothWays(nn.Module):
    """An encoder, and a decoder that hides nothing."""

    def __init__(self, config: EncoderDecoder) -> None:
        super().__init__()
        self.encoder = config.encoder.build()
        self.decoder = Trunk(config.filled_decoder, causal=False)
        if config.shares_embedding:
            self.encoder.embedding.share(self.decoder.embedding)


class ConditionalMaskedModule(TrunkModel):
    """Target ids (b, n) with masks and source ids (b, m) -> scores (b, n, vocab)."""

    config: ConditionalMasked

    def __init__(self, config: ConditionalMasked) -> None:
        super().__init__()
        self.config, trunk = config, config.trunk
        self.trunk = BothWays(trunk)
        tied = self.trunk.decoder.embedding if config.tied else None
        self.output = config.output.build(trunk.dim, self.last_id + 1, tied)
        self.lengths = nn.Linear(trunk.dim, config.longest + 1)
        nn.init.normal_(self.lengths.weight, std=INITIAL_STD)
        nn.init.zeros_(self.lengths.bias)

    def encode(
        self,
        source: Tensor,
        source_valid: Tensor | None = None,
        source_marks: Marks | None = None,
    ) -> Encoded:
        """Source ids (b, m), once for all readings of its targets."""
        given = {"valid": source_valid, "marks": source_marks}
        registers, context = self.trunk.encoder.read(source, **given)
        return Encoded(context, source_valid, self.lengths(registers[:, 0]))

    def decode(self, ids: Tensor, encoded: Encoded, valid: Tensor | None = None) -> Tensor:
        """Scores (b, n, vocab) of a target with masks (b, n)."""
        _, hidden = self.trunk.decoder.read(
            ids, valid=valid, context=encoded.context, context_valid=encoded.valid
        )
        return self.output.scores(hidden)

    def forward(
        self,
        ids: Tensor,
        *,
        source: Tensor,
        valid: Tensor | None = None,
        source_valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source_marks: Marks | None = None,
    ) -> Tensor:
        """Scores (b, n, vocab)."""
        refuse_mask(attention_mask, "valid of the target and source_valid of the source")
        return self.decode(ids, self.encode(source, source_valid, source_marks), valid)

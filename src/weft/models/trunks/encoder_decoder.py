"""Encoder-decoder: a decoder whose 'c' sublayers read an encoder's output.

    y = decoder(target, context = encoder(source))

Decoding encodes the source once; the state carries it. Cross-attention projects it at every step,
O(m·c²) for m source tokens: steps of several tokens share that.

Paper: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.layers.marks import Marks
from weft.layers.padding import refuse_mask
from weft.models.registry import MODELS
from weft.models.stack.order import CROSSING, count
from weft.models.stack.residual import Fixup
from weft.models.trunks.decoder import Decoder, DecoderState
from weft.models.trunks.encoder import Encoder
from weft.models.trunks.transparent import Transparent


@MODELS.register("encoder_decoder")
@dataclass(frozen=True, kw_only=True)
class EncoderDecoder:
    """Two stacks; `shares_embedding` gives both the same token table.

    `transparent` decoders read mixes of all encoder layers (`models/trunks/transparent.py`).
    """

    encoder: Encoder
    decoder: Decoder | None = None  # None: like the encoder, and each layer reads the encoder too
    shares_embedding: bool = False
    transparent: bool = False

    derives = ("decoder",)

    def __post_init__(self) -> None:
        if self.decoder is None:
            object.__setattr__(self, "decoder", decoder_like(self.encoder))
        decoder, order = self.filled_decoder, self.filled_decoder.stack.order
        if not count(order, CROSSING):
            raise WeftError(
                "the decoder of an encoder-decoder reads the encoder in 'c' sublayers; "
                f"got order {order!r}, try {'scf' * order.count('s')!r}"
            )
        if self.encoder.dim != decoder.dim:
            raise WeftError(
                "encoder and decoder have one width; "
                f"got dim={self.encoder.dim} and dim={decoder.dim}"
            )
        sides = self.encoder.embedding, decoder.embedding
        vocabs = sides[0].vocab, sides[1].vocab
        vectors = any(side.channels is not None for side in sides)
        if self.shares_embedding and (vectors or vocabs[0] != vocabs[1]):
            raise WeftError(
                "shares_embedding needs one vocabulary on both sides; "
                f"got vocab={vocabs[0]} and vocab={vocabs[1]}"
            )
        if self.transparent:
            self._check_transparent()
        self._count_sublayers()

    def _check_transparent(self) -> None:
        stacks = self.encoder.stack, self.filled_decoder.stack
        if any(stack.recompute == "reversible" for stack in stacks):
            raise Unsupported(
                "transparent attention reads each layer of the encoder separately, and two streams "
                "have none; set recompute='checkpoint' or transparent=False"
            )
        if self.encoder.stack.depth.repeats > 1:
            raise Unsupported(
                "transparent attention mixes a fixed number of layers; got an encoder with "
                f"depth={self.encoder.stack.depth}"
            )

    def _count_sublayers(self) -> None:
        """Fixup's depth is that of both stacks together."""
        stacks = self.encoder.stack, self.filled_decoder.stack
        total = sum(len(stack.order) * stack.depth.repeats for stack in stacks)
        for side in ("encoder", "decoder"):
            trunk = getattr(self, side)
            if isinstance(trunk.stack.residual, Fixup) and trunk.stack.residual.sublayers is None:
                stack = dataclasses.replace(trunk.stack, residual=Fixup(sublayers=total))
                object.__setattr__(self, side, dataclasses.replace(trunk, stack=stack))

    @property
    def dim(self) -> int:
        """Width of the output."""
        return self.filled_decoder.dim

    @property
    def embedding(self) -> Embedding:
        """The decoder's."""
        return self.filled_decoder.embedding

    @property
    def filled_decoder(self) -> Decoder:
        """The decoder, after the default is filled in."""
        assert self.decoder is not None
        return self.decoder

    def build(self) -> EncoderDecoderModule:
        return EncoderDecoderModule(self)


def decoder_like(encoder: Encoder, **changes: Any) -> Decoder:
    """A decoder with the encoder's layers, each of which reads a context too; or with others."""
    changes = {"order": encoder.stack.order.replace("s", "sc"), **changes}
    return Decoder(
        embedding=dataclasses.replace(encoder.embedding, registers=0),
        stack=dataclasses.replace(encoder.stack, **changes),
    )


class EncoderDecoderModule(nn.Module):
    """Target ids (b, n) and source ids (b, m) -> (b, n, c)."""

    def __init__(self, config: EncoderDecoder) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = config.encoder.build(), config.filled_decoder.build()
        if config.shares_embedding:
            self.encoder.embedding.share(self.decoder.embedding)
        self.mix = None
        if config.transparent:
            stack = self.encoder.stack
            self.mix = Transparent(
                len(stack.layers), self.decoder.stack.reads, stack.config.dropout
            )

    @property
    def embedding(self) -> nn.Module:
        """The embedding of what is decoded."""
        return self.decoder.embedding

    def forward(
        self,
        x: Tensor,
        *,
        source: Tensor,
        valid: Tensor | None = None,
        source_valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
        source_marks: Marks | None = None,
    ) -> Tensor:
        """Target x, (b, n) or (b, n, channels) -> (b, n, c); masks are True at real tokens.

        `marks` (b, n) are of the target, for the decoder; `source_marks` (b, m) for the encoder.
        """
        refuse_mask(attention_mask, "valid of the target and source_valid of the source")
        context = self.encode(source, source_valid, source_marks)
        given = {"context": context, "context_valid": source_valid, "marks": marks}
        return self.decoder(x, valid=valid, **given)

    def encode(
        self, source: Tensor, valid: Tensor | None = None, marks: Marks | None = None
    ) -> Tensor:
        """What the decoder reads: (b, m, c), or (b, reads, m, c) if it is transparent."""
        if self.mix is None:
            return self.encoder(source, valid=valid, marks=marks)
        states = self.encoder.states(source, valid=valid, marks=marks)
        mixed = self.encoder.stack.norm(self.mix(states))
        return mixed if valid is None else mixed.masked_fill(~valid[:, None, :, None], 0.0)

    def start(
        self,
        batch: int = 1,
        *,
        source: Tensor,
        source_valid: Tensor | None = None,
        source_marks: Marks | None = None,
    ) -> DecoderState:
        """Encode the source; the state before the first target token."""
        if len(source) != batch:
            raise WeftError(f"one source for each row: got {len(source)} for batch={batch}")
        context = self.encode(source, source_valid, source_marks)
        return self.decoder.start(batch, context=context, context_valid=source_valid)

    def step(
        self, x: Tensor, state: DecoderState, *, marks: Marks | None = None
    ) -> tuple[Tensor, DecoderState]:
        """New target tokens -> (b, n, c), and the next state."""
        return self.decoder.step(x, state, marks=marks)

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the mixers' states hold after this many target tokens."""
        return self.decoder.state_size(tokens)

"""Encoder-decoder: a decoder whose 'c' sublayers read an encoder's output.

    y = decoder(target, context = encoder(source))

Decoding encodes the source once; the state carries it. Cross-attention projects it at every step,
O(m·c²) for m source tokens: steps of several tokens share that.

Paper: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.models.decoder import Decoder, DecoderState
from weft.models.encoder import Encoder
from weft.models.order import CROSSING, count
from weft.models.registry import MODELS
from weft.models.residual import Fixup
from weft.models.transparent import Transparent


@MODELS.register("encoder_decoder")
@dataclass(frozen=True, kw_only=True)
class EncoderDecoder:
    """Two stacks; `shares_embedding` gives both the same token table.

    `transparent` decoders read mixes of all encoder layers (`models/transparent.py`).
    """

    encoder: Encoder
    decoder: Decoder
    shares_embedding: bool = False
    transparent: bool = False

    def __post_init__(self) -> None:
        order = self.decoder.stack.order
        if not count(order, CROSSING):
            raise WeftError(
                "the decoder of an encoder-decoder reads the encoder in 'c' sublayers; "
                f"got order {order!r}, try {'scf' * order.count('s')!r}"
            )
        if self.encoder.dim != self.decoder.dim:
            raise WeftError(
                "encoder and decoder have one width; "
                f"got dim={self.encoder.dim} and dim={self.decoder.dim}"
            )
        vocabs = self.encoder.embedding.vocab, self.decoder.embedding.vocab
        if self.shares_embedding and (vocabs[0] is None or vocabs[0] != vocabs[1]):
            raise WeftError(
                "shares_embedding needs one vocabulary on both sides; "
                f"got vocab={vocabs[0]} and vocab={vocabs[1]}"
            )
        if self.transparent:
            self._check_transparent()
        self._count_sublayers()

    def _check_transparent(self) -> None:
        stacks = self.encoder.stack, self.decoder.stack
        if any(stack.recompute == "reversible" for stack in stacks):
            raise Unsupported(
                "transparent attention reads each layer of the encoder by itself, and two streams "
                "have none; set recompute='checkpoint' or transparent=False"
            )
        if self.encoder.stack.depth.repeats > 1:
            raise Unsupported(
                "transparent attention mixes a fixed number of layers; got an encoder with "
                f"depth={self.encoder.stack.depth}"
            )

    def _count_sublayers(self) -> None:
        """Fixup's depth is that of both stacks together."""
        stacks = self.encoder.stack, self.decoder.stack
        total = sum(len(stack.order) * stack.depth.repeats for stack in stacks)
        for side in ("encoder", "decoder"):
            trunk = getattr(self, side)
            if isinstance(trunk.stack.residual, Fixup) and trunk.stack.residual.sublayers is None:
                stack = dataclasses.replace(trunk.stack, residual=Fixup(sublayers=total))
                object.__setattr__(self, side, dataclasses.replace(trunk, stack=stack))

    @property
    def dim(self) -> int:
        """Width of the output."""
        return self.decoder.dim

    @property
    def embedding(self) -> object:
        """The embedding of what is decoded."""
        return self.decoder.embedding

    def build(self) -> EncoderDecoderModule:
        """The module."""
        return EncoderDecoderModule(self)


class EncoderDecoderModule(nn.Module):
    """Target ids (b, n) and source ids (b, m) -> (b, n, c)."""

    def __init__(self, config: EncoderDecoder) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = config.encoder.build(), config.decoder.build()
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
    ) -> Tensor:
        """Target x, (b, n) or (b, n, channels) -> (b, n, c); masks are True at real tokens."""
        context = self.encode(source, source_valid)
        return self.decoder(x, valid=valid, context=context, context_valid=source_valid)

    def encode(self, source: Tensor, valid: Tensor | None = None) -> Tensor:
        """What the decoder reads: (b, m, c), or (b, reads, m, c) if it is transparent."""
        if self.mix is None:
            return self.encoder(source, valid=valid)
        mixed = self.encoder.stack.norm(self.mix(self.encoder.states(source, valid=valid)))
        return mixed if valid is None else mixed.masked_fill(~valid[:, None, :, None], 0.0)

    def start(
        self, batch: int = 1, *, source: Tensor, source_valid: Tensor | None = None
    ) -> DecoderState:
        """Encode the source; the state before the first target token."""
        if len(source) != batch:
            raise WeftError(f"one source for each row: got {len(source)} for batch={batch}")
        context = self.encode(source, source_valid)
        return self.decoder.start(batch, context=context, context_valid=source_valid)

    def step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """New target tokens -> (b, n, c), and the next state."""
        return self.decoder.step(x, state)

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the mixers' states hold after this many target tokens."""
        return self.decoder.state_size(tokens)

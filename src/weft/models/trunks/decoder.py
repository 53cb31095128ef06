"""Decoders: each token reads itself and earlier ones, all at once or step by step.

    forward(ids)                 (b, n) -> (b, n, c)
    start(batch), step(ids, state)     any split of the ids into steps gives the rows of forward

With 'c' sublayers in its order a decoder also reads a context (b, m, c) of another sequence.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.marks import Marks, refuse_marks
from weft.layers.padding import real_tokens
from weft.layers.tables.ngrams import refuse_ngrams
from weft.mixers import State
from weft.models.registry import MODELS
from weft.models.stack.stack import Stack
from weft.models.stack.sublayer import StackInputs
from weft.models.trunks.encoder import Trunk

UNMARKED = (
    "decoding takes no marks: each row is one document, and a new token is read by later ones "
    "alone; leave them out, or mark an encoder's source with source_marks="
)


@MODELS.register("decoder")
@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Reads the past only."""

    embedding: Embedding
    stack: Stack

    def __post_init__(self) -> None:
        refuse_ngrams(self.embedding.ngrams, "a decoder")

    @property
    def dim(self) -> int:
        """Width of the output."""
        return self.stack.frame.dim

    def build(self) -> DecoderModule:
        return DecoderModule(self)


@dataclass
class DecoderState:
    """What a decoder remembers: one state for each sublayer that keeps one, and the context."""

    layers: list[State | None]
    context: Tensor | None = None  # (b, m, c), or (b, reads, m, c)
    context_valid: Tensor | None = None  # (b, m)
    position: int = 0  # tokens consumed so far, registers not counted

    def size(self) -> int:
        """Numbers cached per batch row by the mixers; the context is not counted."""
        return sum(state.size() for state in self.layers if state is not None)

    def select(self, rows: Tensor) -> DecoderState:
        """The state of these batch rows, in this order."""
        return dataclasses.replace(
            self,
            layers=[None if state is None else state.select(rows) for state in self.layers],
            context=None if self.context is None else self.context[rows],
            context_valid=None if self.context_valid is None else self.context_valid[rows],
        )


class DecoderModule(Trunk):
    """Ids (b, n) or vectors (b, n, channels) -> (b, n, c)."""

    def __init__(self, config: Decoder) -> None:
        super().__init__(config, causal=True)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """(b, n, c), 0 at padding; `valid` or `attention_mask` (b, n) marks the real tokens."""
        self._check_context(context)
        valid = real_tokens(x, valid, attention_mask)
        given = {"context": context, "context_valid": context_valid, "marks": marks}
        return self.read(x, valid=valid, **given)[1]

    def start(
        self,
        batch: int = 1,
        *,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> DecoderState:
        """The state before the first token; registers, if any, are already read."""
        self._check_context(context)
        state = DecoderState(self.stack.start(batch), context, context_valid)
        if self.registers:
            _, state = self._advance(self.register_rows(batch), state)
        return state

    def step(
        self, x: Tensor, state: DecoderState, *, marks: Marks | None = None
    ) -> tuple[Tensor, DecoderState]:
        """One or several new tokens, (b, n) or (b, n, channels) -> (b, n, c), and the next state.

        The state passed in is consumed: keep only the one returned. Marks are refused.
        """
        refuse_marks(marks, UNMARKED)
        embedded = self.embedding(x, start=state.position)  # (b, n, c)
        y, state = self._advance(embedded, state)
        return y, dataclasses.replace(state, position=state.position + x.shape[1])

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the mixers' states hold after this many tokens."""
        return self.stack.state_size(tokens + self.registers)

    def _advance(self, embedded: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        given = StackInputs(None, state.context, state.context_valid)
        y, layers = self.stack.step(self.enter(embedded), state.layers, given)
        return y, dataclasses.replace(state, layers=layers)

    def _check_context(self, context: Tensor | None) -> None:
        order = self.config.stack.order
        if self.stack.reads and context is None:
            raise WeftError(f"order {order!r} has 'c' sublayers, which read a context; give one")
        if not self.stack.reads and context is not None:
            raise WeftError(f"order {order!r} has no 'c' sublayers, so the context is unused")

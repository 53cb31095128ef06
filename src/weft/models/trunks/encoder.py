"""Encoders: a sequence in, a sequence of the same length out; every token may read every other.

    y = stack(drop(embed(x)))

`Trunk` is what encoder and decoder share: embedding, registers, stack, padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.marks import Marks, moved
from weft.layers.padding import left_align, real_tokens, restore
from weft.models.registry import MODELS
from weft.models.stack.order import CROSSING, count
from weft.models.stack.stack import Stack


class Trunk(nn.Module):
    """Embedding and stack: ids (b, n) or vectors (b, n, channels) -> (b, n, c)."""

    # Set where sequences are split over processes: what reads shards (weft.scale.context).
    shards: Any = None

    def __init__(self, config: Any, causal: bool) -> None:
        super().__init__()
        self.config, stack, frame = config, config.stack, config.stack.frame
        self.dim = frame.dim
        self.embedding = config.embedding.build(frame.dim, frame.length)
        # See weft.layers.norm: a small embedding needs a norm before a post-norm stack.
        self.norm = stack.norm.build(frame.dim) if stack.norm.on_embedding else nn.Identity()
        self.dropout = nn.Dropout(stack.dropout)
        self.stack = stack.build(causal=causal, registers=config.embedding.registers)

    @property
    def registers(self) -> int:
        """Learned tokens in front of each sequence."""
        return self.config.embedding.registers

    def read(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        marks: Marks | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The registers (b, g, c) and the tokens (b, n, c) after the stack; padding yields 0.

        `marks` say more about each token, (b, n) each, to the mixers that know them.
        """
        given = {"context": context, "context_valid": context_valid}
        if self.shards is not None:
            return self.shards.read(self, x, valid=valid, marks=marks, **given)
        if valid is None:
            types, marks = self.types_in(marks)
            entered = self.begin(x, None, types=types)[0]
            return self.end(self.stack(entered, marks=marks, **given), None)
        # Real tokens move to the front here, once for all layers, and back behind the last.
        x, real, order = self.align(x, valid)
        types, marks = self.types_in(moved(marks, order))
        entered, everything = self.begin(x, real, aligned=True, types=types)
        given |= {"valid": everything, "aligned": True, "marks": marks}
        registers, tokens = self.end(self.stack(entered, **given))
        return registers, restore(tokens, order, valid)

    def read_first(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> Tensor:
        """The first register after the stack, (b, c); what only other rows need is left out.

        Where the last mixer reads marks, all of its rows are computed.
        """
        if valid is not None:
            x, valid, order = self.align(x, valid)
            marks = moved(marks, order)
        types, marks = self.types_in(marks)
        entered, everything = self.begin(x, valid, aligned=True, types=types)
        given = {"valid": everything, "aligned": True, "marks": marks}
        return self.stack(entered, first_rows=1, **given)[:, 0]

    def align(self, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs with real tokens first, which of them are real, and the order (b, n) taken."""
        self.embedding.check(x, valid)
        return left_align(x, valid)

    def types_in(self, marks: Marks | None) -> tuple[Tensor | None, Marks | None]:
        """The mark `types`, which is the embedding's, and the other marks."""
        if not marks or not self.config.embedding.types:
            return None, marks
        return marks.get("types"), {name: marks[name] for name in marks if name != "types"}

    def begin(
        self,
        x: Tensor,
        valid: Tensor | None,
        *,
        aligned: bool = False,
        types: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """What enters the stack, registers in front: (b, g + n, c), and which of it is real."""
        given = {"valid": valid, "aligned": aligned, "types": types}
        if not self.registers:
            return self.enter(self.embedding(x, **given)), valid
        embedded = self.embedding.with_registers(x, **given)
        if valid is not None:
            valid = torch.cat((valid.new_ones(len(x), self.registers), valid), dim=1)
        return self.enter(embedded), valid

    def end(self, y: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The registers (b, g, c) and the tokens (b, n, c) of what left the stack."""
        registers, tokens = y[:, : self.registers], y[:, self.registers :]
        if valid is not None:
            tokens = tokens.masked_fill(~valid[..., None], 0.0)  # (b, n, c)
        return registers, tokens

    def enter(self, embedded: Tensor) -> Tensor:
        """The norm and dropout between embedding and stack."""
        return self.dropout(self.norm(embedded))

    def register_rows(self, batch: int) -> Tensor:
        """The registers, once per row: (b, g, c)."""
        return self.embedding.registers.expand(batch, -1, -1)


@MODELS.register("encoder")
@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Reads in both directions."""

    embedding: Embedding
    stack: Stack

    def __post_init__(self) -> None:
        if count(self.stack.order, CROSSING):
            raise WeftError(
                "an encoder has no context, so its order has no 'c' or 'p' sublayers; "
                f"got {self.stack.order!r}. Decoder and EncoderDecoder read one"
            )

    @property
    def dim(self) -> int:
        """Width of the output."""
        return self.stack.frame.dim

    def build(self) -> EncoderModule:
        return EncoderModule(self)


class EncoderModule(Trunk):
    """Ids (b, n) or vectors (b, n, channels) -> (b, n, c)."""

    def __init__(self, config: Encoder) -> None:
        super().__init__(config, causal=False)

    def states(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> list[Tensor]:
        """What enters the first layer and what leaves each, before the last norm: (b, n, c)."""
        types, marks = self.types_in(marks)
        entered, everything = self.begin(x, valid, types=types)
        taps: list[Tensor] = []
        self.stack(entered, valid=everything, taps=taps, marks=marks)
        return [tap[:, self.registers :] for tap in taps]

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """(b, n, c), 0 at padding; `valid` or `attention_mask` (b, n) marks the real tokens.

        `marks` (b, n each) say more about each token, to the mixers that know them.
        """
        return self.read(x, valid=real_tokens(x, valid, attention_mask), marks=marks)[1]

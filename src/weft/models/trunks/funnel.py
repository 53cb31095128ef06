"""Funnel Transformer: an encoder whose sequence shrinks from block to block, and is spread again.

    h_1 = block_1(embed(x)),    h_k = block_k(pool(h_(k−1)), reading h_(k−1))
    y = decoder(h_1 + repeat(h_last))

Pooling makes one token of `stride` neighbours. The first layer of each further block reads the
unpooled sequence with pooled queries ('c' in the order of sublayers), the others the pooled one.
Registers (a CLS token) are never pooled. A pooled token is real if one of its tokens is, and pools
the real ones. Marks that are True or False pool as "one of them is". One block and no decoder is an
Encoder.
Cost: block k has n / stride^(k−1) tokens; its first layer reads as many as the block before it.

Paper: Dai et al. 2020, section 2.2, https://arxiv.org/abs/2006.03236
Differs from it: any mixer in every block; positions inside attention count pooled tokens of a block
from 0; a sequence of odd length keeps its last token, pooled alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.kernels.slots import into_blocks
from weft.layers.compress import BlockCompression
from weft.layers.marks import Marks, moved
from weft.layers.padding import left_align, restore
from weft.models.registry import MODELS
from weft.models.stack.known_marks import known_marks
from weft.models.stack.stack import Stack, StackModule
from weft.models.trunks.encoder import Encoder, EncoderModule


@MODELS.register("funnel")
@dataclass(frozen=True, kw_only=True)
class Funnel(Encoder):
    """An encoder with ever fewer tokens; `stack` describes one block."""

    blocks: int = 3
    stride: int = 2  # tokens that become one
    pool: Literal["mean", "max"] = "mean"
    decoder: str = "sfsf"  # order of the layers after spreading out; "": none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks < 1 or self.stride < 2:
            raise WeftError(
                "a funnel has at least 1 block and pools at least 2 tokens; got "
                f"blocks={self.blocks}, stride={self.stride}"
            )
        if isinstance(self.stack.mixer, tuple):
            raise WeftError("the blocks of a funnel share one mixer; got one for each layer")
        for order in (self.order_of(1), self.decoder) if self.blocks > 1 else (self.decoder,):
            if order:
                dataclasses.replace(self.stack, order=order)

    def order_of(self, block: int) -> str:
        """The sublayers of a block: from the second on, its first mixing reads the block before."""
        return self.stack.order if block == 0 else self.stack.order.replace("s", "c", 1)

    def build(self) -> FunnelModule:
        return FunnelModule(self)


class FunnelModule(EncoderModule):
    """Ids (b, n) or vectors (b, n, channels) -> (b, n, c), through shorter and shorter blocks."""

    def __init__(self, config: Funnel) -> None:
        super().__init__(config)
        self.narrower = nn.ModuleList(
            self._stack(config.order_of(block)) for block in range(1, config.blocks)
        )
        self.decoder = self._stack(config.decoder) if config.decoder else None
        self.pool = BlockCompression(config.pool, config.stride, 1, self.dim)

    def _stack(self, order: str) -> StackModule:
        stack: Stack = dataclasses.replace(self.config.stack, order=order)
        return stack.build(causal=False, registers=self.registers)

    def read(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> tuple[Tensor, Tensor]:
        """The registers (b, g, c) and the tokens (b, n, c); padding yields 0."""
        tokens = self.embedding(x, valid=valid)  # (b, n, c)
        if valid is None:
            return self._through(tokens, None, marks)
        tokens, real, order = left_align(tokens, valid)
        registers, tokens = self._through(tokens, real, moved(marks, order))
        return registers, restore(tokens, order, valid)

    def _through(
        self, tokens: Tensor, valid: Tensor | None, marks: Marks | None
    ) -> tuple[Tensor, Tensor]:
        """Down the funnel and out again; real tokens come first."""
        b, n, _ = tokens.shape
        if self.registers:
            tokens = torch.cat((self.register_rows(b), tokens), dim=1)
        whole = seen = self._with_registers(valid)
        all_marks = marks
        first = h = self.stack(self.enter(tokens), valid=seen, marks=marks)
        for block in self.narrower:
            marks = self._pooled_marks(marks, valid)
            pooled, valid = self._pooled(h[:, self.registers :], valid)
            queries = torch.cat((h[:, : self.registers], pooled), dim=1)
            before, seen = seen, self._with_registers(valid)
            given = {"context": h, "context_valid": before, "marks": _known(block, marks)}
            h = block(queries, valid=seen, **given)
        registers, tokens = h[:, : self.registers], h[:, self.registers :]
        tokens = tokens.repeat_interleave(self.config.stride ** len(self.narrower), dim=1)[:, :n]
        if self.decoder is None:
            return registers, tokens
        given = {"valid": whole, "marks": _known(self.decoder, all_marks)}
        y = self.decoder(first + torch.cat((registers, tokens), dim=1), **given)
        return y[:, : self.registers], y[:, self.registers :]

    def _pooled(self, tokens: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(b, n, c) -> (b, ⌈n / stride⌉, c), and which of them are real."""
        pooled = self.pool(tokens[:, None], valid)[:, 0]
        if valid is None:
            return pooled, None
        return pooled, into_blocks(valid[..., None], self.config.stride).any(-2)[..., 0]

    def _pooled_marks(self, marks: Marks | None, valid: Tensor | None) -> Marks | None:
        """True where one of the tokens behind a pooled one is marked: (b, ⌈n / stride⌉)."""
        if not marks:
            return None
        for name, mark in marks.items():
            if mark.dtype != torch.bool:
                raise Unsupported(
                    f"{name} numbers tokens, and a funnel pools tokens of several numbers into "
                    "one; marks that are True or False pool, or use an Encoder"
                )
        real = {k: mark if valid is None else mark & valid for k, mark in marks.items()}
        stride = self.config.stride
        return {k: into_blocks(mark[..., None], stride).any(-2)[..., 0] for k, mark in real.items()}

    def _with_registers(self, valid: Tensor | None) -> Tensor | None:
        if valid is None or not self.registers:
            return valid
        return torch.cat((valid.new_ones(len(valid), self.registers), valid), dim=1)


def _known(stack: Any, marks: Marks | None) -> Marks | None:
    """The marks without those that this stack's mixers do not know: its order may have none."""
    known = known_marks(mixer.config for mixer in stack.mixers)
    return {name: mark for name, mark in marks.items() if name in known} if marks else None

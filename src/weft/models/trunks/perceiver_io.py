"""Perceiver IO: any input to any output, through a fixed number of latents.

    z = latents(embed(x)),    y_o = LatentBlock(query_o, z)       (`layers/latents.py`)

The input is read once per repeat, O(n·r); all depth is among r latents, O(layers·r²); each output
is one query that reads the latents, O(o·r). Queries are given with the call, (b, o, c), as many as
outputs are wanted and made of whatever tells them apart (a position, a task); or the model learns
`outputs` of them; or, with neither, every token asks for itself: a row for each, as of an encoder.

Paper: Jaegle et al. 2021, Perceiver IO, section 3, https://arxiv.org/abs/2107.14795
Differs from it: latents, queries and inputs are as wide as the model.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.cross_attention import CrossAttention
from weft.layers.embedding import Embedding
from weft.layers.latents import INITIAL_STD, LatentBlock, Latents
from weft.layers.marks import Marks, refuse_marks
from weft.layers.padding import real_tokens
from weft.mixers import Frame
from weft.models.registry import MODELS


@MODELS.register("perceiver")
@dataclass(frozen=True, kw_only=True)
class PerceiverIO:
    """Latents between any input and any output."""

    embedding: Embedding
    frame: Frame
    latents: int = 256
    layers: int = 6  # attentions among the latents after each reading
    repeats: int = 1  # how often the latents read the input
    expansion: int = 1  # hidden units per channel of feed-forwards
    outputs: int | None = None  # learned queries; None: those of a call, or the tokens themselves
    query_residual: bool = True  # queries are added to what they read

    def __post_init__(self) -> None:
        if self.frame.positions is not None or self.frame.causal:
            raise WeftError(
                "a perceiver's latents have no positions in the text: frame.positions is None and "
                "frame.causal is False; embed positions with Embedding(positions=...)"
            )
        if self.embedding.registers:
            raise WeftError(
                "a perceiver's latents are its registers; use Embedding(registers=0), got "
                f"registers={self.embedding.registers}"
            )
        if self.outputs is not None and self.outputs < 1:
            raise WeftError(f"outputs counts learned queries, at least 1; got {self.outputs}")

    @property
    def dim(self) -> int:
        """Width of the output."""
        return self.frame.dim

    @property
    def mechanism(self) -> str:
        """For a row of results."""
        return "perceiver"

    def facts(self) -> dict[str, Any]:
        """Layers, width, heads and positions, for a row of results."""
        facts = {"layers": self.layers, "dim": self.frame.dim, "heads": self.frame.heads}
        return {**facts, "positions": self.embedding.positions}

    def bound(self, inputs: dict[str, Any], length: int) -> PerceiverIO:
        """With the inputs and the longest sequence of a task."""
        frame = dataclasses.replace(self.frame, length=length)
        embedding = dataclasses.replace(self.embedding, **inputs)
        return dataclasses.replace(self, embedding=embedding, frame=frame)

    def build(self) -> PerceiverIOModule:
        return PerceiverIOModule(self)


class PerceiverIOModule(nn.Module):
    """Ids (b, n) or vectors (b, n, channels) -> (b, o, c), one vector for each query."""

    def __init__(self, config: PerceiverIO) -> None:
        super().__init__()
        self.config, frame = config, config.frame
        sizes = (frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias, frame.dropout)
        self.embedding: Any = self.embedding_of(config)
        self.latents = Latents(
            sizes, config.latents, config.layers, config.repeats, config.expansion
        )
        self.decoder = LatentBlock(
            CrossAttention(*sizes), frame.dim, config.expansion, residual=config.query_residual
        )
        if config.outputs is not None:
            self.queries = nn.Parameter(torch.randn(config.outputs, frame.dim) * INITIAL_STD)

    def embedding_of(self, config: PerceiverIO) -> nn.Module:
        """What embeds the input."""
        return config.embedding.build(config.frame.dim, config.frame.length)

    def embedded(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the latents read (b, n, c), and which of it is real."""
        return self.embedding(x, valid=valid), valid

    def own_queries(self) -> Tensor | None:
        """The queries (o, c) that the model has itself, or None."""
        return None if self.config.outputs is None else self.queries

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        queries: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """`queries` (b, o, c) ask for outputs; `valid` or `attention_mask` (b, n): real inputs."""
        refuse_marks(marks, "latents read all tokens alike; use an Encoder with a mixer that knows")
        valid = real_tokens(x, valid, attention_mask)
        embedded, valid = self.embedded(x, valid)  # (b, n, c)
        z = self.latents(embedded, valid)
        if queries is not None or self.own_queries() is not None:
            return self.decode(z, queries)
        y = self.decoder(embedded, z)  # each token queries the latents
        return y if valid is None else y.masked_fill(~valid[..., None], 0.0)

    def read(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> tuple[Tensor, Tensor]:
        """No registers (b, 0, c), and what a head pools: the learned outputs, or the latents."""
        refuse_marks(marks, "latents read all tokens alike; use an Encoder with a mixer that knows")
        z = self.encode(x, valid=valid)  # (b, r, c)
        return z[:, :0], z if self.own_queries() is None else self.decode(z)

    def rows_valid(self, valid: Tensor | None) -> None:
        """All of what `read` gives is real."""

    def encode(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """What the latents made of the input: (b, r, c)."""
        return self.latents(*self.embedded(x, valid))

    def decode(self, z: Tensor, queries: Tensor | None = None) -> Tensor:
        """Latents (b, r, c) and queries (b, o, c) -> (b, o, c)."""
        own = self.own_queries()
        if (queries is None) == (own is None):
            raise WeftError(
                "outputs are decoded by queries: give queries=..., or build with outputs=..., "
                f"one of them; got outputs={self.config.outputs} and "
                f"{'no queries' if queries is None else 'queries'}"
            )
        if queries is None:
            assert own is not None  # checked
            queries = own.expand(len(z), -1, -1)
        if queries.dim() != 3 or queries.shape[::2] != z.shape[::2]:
            raise WeftError(
                f"queries are (batch, outputs, width) = ({len(z)}, any, {z.shape[2]}); "
                f"got {tuple(queries.shape)}"
            )
        return self.decoder(queries, z)

"""Perceiver: latents read the sequence, think, and the sequence reads them back.

    z = latents(x),    out_i = attention(x_i, norm(z))        (`layers/latents.py`)

r latents attend to the n tokens, then `layers` times to each other; a token reads what they have
become. With a context the latents read that instead. Tokens have no order to it: add positions to
the embedding. `weft.models.Perceiver` is the whole model, any input to any set of output queries.
Time O(n·r·c + layers·r²·c), memory O(n·r + layers·r²).

Papers: Jaegle et al. 2021, section 3.1, https://arxiv.org/abs/2103.03206; reading back by queries:
Jaegle et al. 2021, Perceiver IO, section 3.1, https://arxiv.org/abs/2107.14795
Differs from them: it is a layer, so the queries of the decoder are the tokens, whose residual, norm
and feed-forward are those of the layer around it; latents are as wide as the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.errors import Unsupported
from weft.layers.cross_attention import CrossAttention
from weft.layers.latents import Latents
from weft.mixers.base import MIXERS, Frame, Mixer, Traits
from weft.patterns.sequence import at_least


@MIXERS.register("perceiver")
@dataclass(frozen=True, kw_only=True)
class Perceiver:
    """Attention through latents that attend to each other."""

    latents: int = 64  # learned vectors that read the sequence
    layers: int = 1  # how often they attend to each other
    repeats: int = 1  # how often they read the sequence
    expansion: int = 1  # hidden units per channel of their feed-forwards

    traits: ClassVar[Traits] = Traits(
        family="low rank",
        paper="Jaegle et al. 2021, https://arxiv.org/abs/2103.03206",
        time="n·r·c",
        memory="n·r",
        cross=True,
        note="its latents read the whole sequence before any token reads them",
    )

    def __post_init__(self) -> None:
        at_least(1, latents=self.latents, repeats=self.repeats, expansion=self.expansion)
        at_least(0, layers=self.layers)

    def build(self, frame: Frame) -> PerceiverMixing:
        """The module."""
        return PerceiverMixing(self, frame)

    @classmethod
    def variants(cls) -> tuple[Perceiver, ...]:
        """Settings that the contract suite tests."""
        return cls(latents=5), cls(latents=3, layers=0, repeats=3, expansion=2)


class PerceiverMixing(Mixer):
    """Tokens read latents that have read them."""

    def __init__(self, config: Perceiver, frame: Frame) -> None:
        super().__init__(config, frame)
        if frame.positions is not None:
            raise Unsupported(
                "perceiver's latents stand nowhere in the sequence; got "
                f"positions={frame.positions}; use positions=None, and embed positions"
            )
        sizes = (frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias, frame.dropout)
        self.latents = Latents(
            sizes, config.latents, config.layers, config.repeats, config.expansion
        )
        self.norm = nn.LayerNorm(frame.dim)
        self.spread = CrossAttention(*sizes)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """Read, think, read back."""
        source, real = (x, valid) if context is None else (context, context_valid)
        z = self.latents(source, real)  # (b, r, c)
        return self.spread(x, self.norm(z))

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """The same by dense attention, each row over its real tokens alone."""
        source, real = (x, valid) if context is None else (context, context_valid)
        rows = []
        for a in range(len(x)):
            count = source.shape[1] if real is None else int(real[a].sum())
            z = self.latents(source[a : a + 1, :count], plain=True)
            rows.append(self.spread(x[a : a + 1], self.norm(z), plain=True))
        return torch.cat(rows)

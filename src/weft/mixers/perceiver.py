"""Perceiver: latents read the sequence, think, and the sequence reads them back.

    z = latents(x),    out_i = attention(x_i, norm(z))        (`layers/latents.py`)

r latents attend to the n tokens, then `layers` times to each other; a token reads what they have
become. With a context the latents read that instead. Tokens have no order to it: add positions to
the embedding. `weft.models.PerceiverIO` is the whole model, any input to any set of output queries.
Time O(n·r·c + layers·r²·c), memory O(n·r + layers·r²).

Papers: Jaegle et al. 2021, section 3.1, https://arxiv.org/abs/2103.03206; reading back by queries:
Jaegle et al. 2021, Perceiver IO, section 3.1, https://arxiv.org/abs/2107.14795
Differs from them: it is a layer, so the queries of the decoder are the tokens, whose residual, norm
and feed-forward are those of the layer around it; latents are as wide as the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from weft.errors import at_least
from weft.layers.cross_attention import CrossAttention
from weft.layers.latents import Latents
from weft.mixers.base import MIXERS, Frame, Traits
from weft.mixers.base.latent import LatentMixer, attention_sizes


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
        context_parallel="what latents read, as sums over the ranks",
        cross=True,
        note="its latents read the whole sequence before any token reads them",
        tensor="its latents pass layers that each read all channels",
    )

    def __post_init__(self) -> None:
        at_least(1, latents=self.latents, repeats=self.repeats, expansion=self.expansion)
        at_least(0, layers=self.layers)

    def build(self, frame: Frame) -> PerceiverMixing:
        return PerceiverMixing(self, frame)

    @classmethod
    def variants(cls) -> tuple[Perceiver, ...]:
        """Settings that the contract suite tests."""
        return cls(latents=5), cls(latents=3, layers=0, repeats=3, expansion=2)


class PerceiverMixing(LatentMixer):
    """Tokens read latents that have read them."""

    def __init__(self, config: Perceiver, frame: Frame) -> None:
        super().__init__(config, frame)
        self.refuse_positions(
            "perceiver's latents have no position in the sequence",
            "use positions=None, and embed positions",
        )
        sizes = attention_sizes(frame)
        self.latents = Latents(
            sizes, config.latents, config.layers, config.repeats, config.expansion
        )
        self.norm = nn.LayerNorm(frame.dim)
        self.spread = CrossAttention(*sizes)

    def latents_of(self, source: Tensor, real: Tensor | None, *, plain: bool) -> Tensor:
        return self.norm(self.latents(source, real, plain=plain))

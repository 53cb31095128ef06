"""ELECTRA: a small generator fills masks, and a discriminator tells its tokens from the true ones.

    generator        scores of masked tokens = table · norm(gelu(W h_g + b)) / √c
    discriminator    replaced?  = w · gelu(W' h + b') + b''      for every token

h_g comes from a stack of its own, narrower by `share`, on the discriminator's embedding brought to
its width; so the tokens of both are learned together. The trunk is the discriminator: what is kept.
The mask token is the last id.

Paper: Clark et al. 2020, section 3.1, https://arxiv.org/abs/2003.10555
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.marks import Marks
from weft.layers.outputs import Linear, OutputConfig
from weft.models.heads.document import INITIAL_STD
from weft.models.registry import MODELS, TrunkModel
from weft.models.stack.stack import Stack
from weft.models.trunks.encoder import Encoder


@MODELS.register("electra")
@dataclass(frozen=True, kw_only=True)
class Electra:
    """A discriminator, and a generator like it with fewer heads."""

    trunk: Encoder
    share: float = 0.25  # of the discriminator's heads that the generator has; its width follows
    output: OutputConfig = field(default_factory=Linear)  # of the generator, tied

    def __post_init__(self) -> None:
        if not isinstance(self.trunk, Encoder) or self.trunk.embedding.vocab is None:
            raise WeftError(f"the trunk is an Encoder over tokens; got {self.trunk!r}")
        if not 0.0 < self.share <= 1.0:
            raise WeftError(f"share is a part of the heads in (0, 1]; got share={self.share}")
        self.output.check(self.trunk.embedding, tied=True)

    @property
    def generator(self) -> Stack:
        """The generator's stack."""
        stack, frame = self.trunk.stack, self.trunk.stack.frame
        heads = max(1, round(frame.heads * self.share))
        narrow = dataclasses.replace(frame, dim=heads * frame.head_dim, heads=heads, kv_heads=None)
        return dataclasses.replace(stack, frame=narrow, layer_heads=None)

    def build(self) -> ElectraModule:
        return ElectraModule(self)


class ElectraModule(TrunkModel):
    """Ids (b, n) -> scores (b, n), positive where a token seems replaced."""

    config: Electra

    def __init__(self, config: Electra) -> None:
        super().__init__()
        self.config, dim = config, config.trunk.dim
        self.trunk = config.trunk.build()
        self.generator = config.generator.build(causal=False)
        small = config.generator.frame.dim
        self.narrow = nn.Linear(dim, small)
        self.widen = nn.Sequential(nn.Linear(small, dim), nn.GELU(), nn.LayerNorm(dim))
        self.output = config.output.build(dim, self.last_id + 1, self.trunk.embedding)
        first, last = nn.Linear(dim, dim), nn.Linear(dim, 1)
        self.head = nn.Sequential(first, nn.GELU(), last)
        for layer in (first, last):
            nn.init.normal_(layer.weight, std=INITIAL_STD)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        ids: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """The discriminator's scores (b, n)."""
        given = {"valid": valid, "attention_mask": attention_mask, "marks": marks}
        return self.head(self.trunk(ids, **given)).squeeze(-1)

    def fill(
        self, ids: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> Tensor:
        """The generator's scores (b, n, vocab)."""
        embedded = self.trunk.enter(self.trunk.embedding(ids, valid=valid))  # (b, n, c)
        hidden = self.generator(self.narrow(embedded), valid=valid, marks=marks)
        return self.output.scores(self.widen(hidden))

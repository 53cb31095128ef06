"""A Perceiver IO of several modalities: sound, pictures, text and numbers at once.

    z = latents([E_1(x_1); …; E_m(x_m)]),    y_o = LatentBlock(query_o, z)

Each modality has an encoder of its own (`weft.layers.fronts.modality`); latents read all elements.
A task says which modalities there are (`modalities`), the user how each is encoded (`encoders`, by
name). Heads pool the latents, or `outputs` learned queries. `asked` names modalities whose elements
are the queries instead, each made of its place and modality alone: one output for each element, to
predict what stands there.

Paper: Jaegle et al. 2021, Perceiver IO, sections 3.3 and 4.3, https://arxiv.org/abs/2107.14795
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.fronts.modality import (
    Modalities,
    Modality,
    ModalityEncoder,
    encoder_of,
    pack,
)
from weft.models.registry import MODELS
from weft.models.trunks.perceiver_io import PerceiverIO, PerceiverIOModule


@MODELS.register("multimodal_perceiver")
@dataclass(frozen=True, kw_only=True)
class MultimodalPerceiver(PerceiverIO):
    """Latents that read several modalities."""

    embedding: Embedding = field(init=False, default_factory=Embedding)  # modalities embed
    modalities: tuple[Modality, ...] = ()  # None yet: those of a task
    encoders: tuple[ModalityEncoder, ...] = ()  # of modalities by name; the others: the defaults
    asked: tuple[str, ...] = ()  # modalities whose elements are the queries

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [each.name for each in self.modalities]
        if len(set(names)) < len(names):
            raise WeftError(f"modalities have different names; got {names}")
        encoded = [each.modality for each in self.encoders]
        if len(set(encoded)) < len(encoded):
            raise WeftError(f"modalities have one encoder each; got encoders of {encoded}")
        for name in (*encoded, *self.asked) if names else ():
            if name not in names:
                raise WeftError(f"there is no modality {name!r}; there are {', '.join(names)}")
        if self.asked and (self.outputs is not None or self.query_residual is False):
            raise WeftError(
                "outputs are asked for by elements of modalities (asked) or by learned queries "
                f"(outputs); got asked={self.asked}, outputs={self.outputs}, "
                f"query_residual={self.query_residual}"
            )
        for each in self.modalities:
            encoder_of(each.name, self.encoders).grid(each)

    def facts(self) -> dict[str, Any]:
        """Layers, width, heads and modalities, for a row of results."""
        names = "+".join(each.name for each in self.modalities)
        return {**super().facts(), "positions": f"of {names}" if names else "of modalities"}

    def bound(self, inputs: dict[str, Any], length: int) -> MultimodalPerceiver:
        """With the modalities of a task."""
        if "modalities" not in inputs:
            raise WeftError(
                "multimodal_perceiver reads the modalities of a task, such as `modalities`; for a "
                "task of one kind of input take trunk = 'perceiver'"
            )
        frame = dataclasses.replace(self.frame, length=length)
        return dataclasses.replace(self, modalities=inputs["modalities"], frame=frame)

    def pack(self, given: Mapping[str, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """A dict of inputs -> x (b, total, 1) and valid (b, total), what the model reads."""
        return pack(self.modalities, given)

    def build(self) -> MultimodalPerceiverModule:
        if not self.modalities:
            raise WeftError("give modalities=(Modality(name=..., shape=...), ...), one or more")
        return MultimodalPerceiverModule(self)


class MultimodalPerceiverModule(PerceiverIOModule):
    """Values (b, total, 1) -> (b, o, c)."""

    config: MultimodalPerceiver

    def embedding_of(self, config: PerceiverIO) -> nn.Module:
        config = cast(MultimodalPerceiver, config)
        return Modalities(config.modalities, config.encoders, config.frame.dim)

    def embedded(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.embedding(x, valid)

    def own_queries(self) -> Tensor | None:
        """Learned ones, or those of the elements that are asked for: (o, c)."""
        if not self.config.asked:
            return super().own_queries()
        return torch.cat([self.embedding.reader(name).placed() for name in self.config.asked])

    def split(self, y: Tensor) -> dict[str, Tensor]:
        """Outputs (b, o, c) of elements by modality: (b, elements, c) each."""
        sizes = [self.embedding.reader(name).elements for name in self.config.asked]
        return dict(zip(self.config.asked, y.split(sizes, dim=1), strict=True))

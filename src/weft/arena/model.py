"""The model of a comparison: one setting, a task and a mechanism give a model's config.

Everything but the mechanism is the same for all contenders: widths, depth, feed-forward, norm,
positions. Language tasks read the past only (a Decoder), the others both ways (an Encoder).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from weft.errors import WeftError
from weft.feedforward import Dense
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.positions import POSITIONS
from weft.mixers import Frame
from weft.models import Decoder, Encoder, Stack
from weft.models.heads import Pool

_ADDED = ("none", "sinusoidal", "learned")  # positions added to the embedding


@dataclass(frozen=True, kw_only=True)
class ModelSetting:
    """What surrounds the mechanism."""

    layers: int = 4
    dim: int = 128
    heads: int = 4
    head_dim: int | None = None  # None: dim / heads
    hidden: int | None = None  # units of the feed-forward; None: 4·dim
    activation: str = "gelu"
    positions: str = "sinusoidal"  # none, sinusoidal, learned; or rope, alibi, t5, in attention
    bumps: int | None = None  # tokens are levels, embedded by so many bumps; None: a table
    registers: int = 0  # learned tokens in front; with pool = "first", the first is a CLS token
    pool: Pool = "mean"
    head_hidden: int | None = None  # units of the head's hidden layer; None: none, or dim (match)
    norm: Literal["layer", "rms"] = "layer"
    norm_place: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    bias: bool = True
    recompute: Literal["nothing", "checkpoint", "reversible"] = "nothing"

    def __post_init__(self) -> None:
        for name in ("layers", "dim", "heads", "hidden"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise WeftError(f"{name} is at least 1; got {name}={value}")
        if self.pool not in get_args(Pool):
            raise WeftError(f"pool is one of {', '.join(get_args(Pool))}; got {self.pool!r}")
        if self.positions not in _ADDED:
            POSITIONS.parse(self.positions)

    def stack(self, mixer: Any, length: int) -> Stack:
        """Layers of this mechanism for sequences up to `length`."""
        inside = None if self.positions in _ADDED else POSITIONS.parse(self.positions)
        frame = Frame(
            dim=self.dim,
            heads=self.heads,
            head_dim=self.head_dim,
            length=length,
            positions=inside,
            dropout=self.attention_dropout,
            bias=self.bias,
        )
        wide = (self.hidden or 4 * self.dim) / self.dim
        return Stack(
            frame=frame,
            order="sf" * self.layers,
            mixer=mixer,
            feedforward=Dense(activation=self.activation, expansion=wide),
            norm=Norm(kind=self.norm, place=self.norm_place),
            dropout=self.dropout,
            recompute=self.recompute,
        )

    def trunk(self, task: Any, mixer: Any) -> Encoder | Decoder:
        """Embedding and layers for a task; `mixer` is a config or a spec string."""
        added = self.positions if self.positions in _ADDED else "none"
        embedding = Embedding(
            vocab=task.vocab, positions=added, bumps=self.bumps, registers=self.registers
        )
        kind = Decoder if task.kind == "language" else Encoder
        return kind(embedding=embedding, stack=self.stack(mixer, task.length))

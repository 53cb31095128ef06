"""The model of a comparison: one setting, a task and a mechanism give a model's config.

Everything but the mechanism is the same for all contenders: widths, depth, feed-forward, norm,
positions. Language tasks read the past only (a Decoder), the others both ways (an Encoder).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from weft import spec
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS, Dense, two_thirds
from weft.feedforward.activations import GATES
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import OUTPUTS, AdaptiveSoftmax, OutputConfig
from weft.layers.positions import POSITIONS
from weft.layers.projection import PROJECTIONS
from weft.mixers import Frame
from weft.models import (
    DEPTHS,
    RESIDUALS,
    Decoder,
    Encoder,
    Stack,
    evolved_decoder,
    evolved_encoder,
)
from weft.models.heads import Pool
from weft.models.order import FEEDING, count

_ADDED = ("none", "sinusoidal", "learned")  # positions added to the embedding


@dataclass(frozen=True, kw_only=True)
class ModelSetting:
    """What surrounds the mechanism."""

    layers: int = 4
    dim: int = 128
    heads: int = 4
    head_dim: int | None = None  # None: dim / heads
    hidden: int | None = None  # units of the feed-forward; None: 4·dim, two thirds with a gate
    activation: str = "gelu"  # or a gate: swiglu, ...
    # A spec, or several that take turns ("dense, switch(experts=8)"): `hidden` and `activation` are
    # theirs where they name none. None: dense.
    feedforward: str | None = None
    projection: str = "dense"  # how attention makes queries, keys and values
    positions: str = "sinusoidal"  # none, sinusoidal, learned; or rope, alibi, t5, in attention
    bumps: int | None = None  # tokens are levels, embedded by so many bumps; None: a table
    factor: int | None = None  # width of a factorised table; None: the model's
    cutoffs: tuple[int, ...] = ()  # of an adaptive input: wide rows for the frequent tokens
    frequent: tuple[int, ...] = ()  # tokens that come first where there are clusters
    output: str = "linear"  # how a language model scores tokens
    tied: bool = True  # the output shares the table of the embedding
    registers: int = 0  # learned tokens in front; with pool = "first", the first is a CLS token
    pool: Pool = "mean"
    head_hidden: int | None = None  # units of the head's hidden layer; None: none, or dim (match)
    trimmed: bool = False  # pool = "first": the last layer computes the register alone
    order: str | None = None  # of sublayers, or "evolved"; None: "sf" for each layer
    residual: str = "plain"  # how a sublayer joins the stream: plain, rezero, fixup
    depth: str = "plain"  # how layers are passed through: plain, layer_drop, universal
    shared: int = 0  # groups of layers with the same parameters; 0: each layer has its own
    norm: Literal["layer", "rms", "none"] = "layer"
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
        if self.feedforward is not None:
            spec.parse_list(self.feedforward, self._feedforward)
        PROJECTIONS.parse(self.projection)
        OUTPUTS.parse(self.output)
        RESIDUALS.parse(self.residual)
        DEPTHS.parse(self.depth)

    def stack(self, mixer: Any, length: int, *, causal: bool = False) -> Stack:
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
            projection=self.projection,
        )
        order = self.order or "sf" * self.layers
        parts = {
            "order": order,
            "mixer": mixer,
            "feedforward": self.feedforward_for(count(order, FEEDING)),
        }
        if self.order == "evolved":
            parts = self._evolved(mixer, causal)
        return Stack(
            frame=frame,
            **parts,
            residual=self.residual,
            depth=self.depth,
            shared=self.shared,
            norm=Norm(kind=self.norm, place=self.norm_place),
            dropout=self.dropout,
            recompute=self.recompute,
        )

    def feedforward_for(self, count: int) -> Any:
        """One feed-forward for all of `count` sublayers, or a tuple with one for each."""
        if self.feedforward is None:
            wide = self._units(self.activation) / self.dim
            return Dense(activation=self.activation, expansion=wide)
        found = spec.parse_list(self.feedforward, self._feedforward)
        if len(found) == 1:
            return found[0]
        if count % len(found):
            raise WeftError(
                f"{len(found)} feed-forwards take turns, so their number divides that of the 'f' "
                f"sublayers, {count}; got feedforward={self.feedforward!r}"
            )
        return tuple(found * (count // len(found)))

    def _feedforward(self, name: str, args: list[Any], given: dict[str, Any]) -> Any:
        known = {field.name for field in dataclasses.fields(FEEDFORWARDS[name])}
        own = {"activation": self.activation} | given
        if "expansion" not in given:
            own = {"hidden": self._units(own["activation"])} | own
        chosen = {key: value for key, value in own.items() if key in known or key in given}
        return FEEDFORWARDS.make(name, *args, **chosen)

    def _units(self, activation: str) -> int:
        wide = 4 * self.dim
        return self.hidden or (two_thirds(wide) if activation in GATES else wide)

    def head_output(self) -> OutputConfig:
        """How a language model scores tokens; clusters of the output know the frequent ones."""
        found = OUTPUTS.parse(self.output)
        if isinstance(found, AdaptiveSoftmax) and not found.frequent:
            return dataclasses.replace(found, frequent=self.frequent)
        return found

    def _evolved(self, mixer: Any, causal: bool) -> dict[str, Any]:
        """A cell for every two layers; feed-forwards are the cells' own."""
        cells = max(1, self.layers // 2)
        if causal:
            return evolved_decoder(cells, self.heads, mixer, context=False)
        return evolved_encoder(cells, mixer)

    def trunk(self, task: Any, mixer: Any) -> Encoder | Decoder:
        """Embedding and layers for a task; `mixer` is a config or a spec string."""
        added = self.positions if self.positions in _ADDED else "none"
        embedding = Embedding(
            vocab=task.vocab,
            positions=added,
            bumps=self.bumps,
            registers=self.registers,
            factor=self.factor,
            cutoffs=self.cutoffs,
            frequent=self.frequent if self.cutoffs else (),
        )
        kind = Decoder if task.kind == "language" else Encoder
        stack = self.stack(mixer, task.length, causal=kind is Decoder)
        return kind(embedding=embedding, stack=stack)

"""The one contract of token mixing, and what is written once around every mechanism.

    forward(x, valid=, context=)  (b, n, c) -> (b, n, c), any length, any padding
    start(batch) -> State         causal mixers: decoding
    step(x, state) -> y, State    one or several new tokens; any split equals forward

A mechanism is a frozen config (its settings, its `traits`, `build(frame)`) and a module that
implements `mix`, `reference` and, where it streams, `start` and `step`. In `mix`, `valid` is
either None or marks real tokens that all stand at the front of their row: `forward` has moved
them there and moves the results back, so padding is never a mechanism's concern elsewhere.

Training has two hooks, which do nothing unless a mechanism defines them: `penalty()` is added to
the loss (`penalties(model)` sums it over a model), `advance(step)` follows an optimiser step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.padding import left_align, restore
from weft.layers.penalty import penalties
from weft.layers.positions import build_positions
from weft.layers.projection import PROJECTIONS, DenseProjection
from weft.layers.state import State
from weft.registry import Registry

__all__ = ["MIXERS", "AttentionMixer", "Frame", "Mixer", "State", "Traits", "penalties"]

MIXERS = Registry("mixer")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a mechanism is and can do; chooses its contract checks and writes the docs table."""

    family: str  # fixed pattern, learned pattern, low rank, feature map, synthesised, ...
    paper: str  # authors, year, address
    time: str  # per layer, in the letters of the shape legend
    memory: str  # working memory per layer, beyond the input
    state: str | None = None  # numbers a decoder keeps per layer and row; None: cannot stream
    exact: bool = False  # equals dense attention under a pattern
    causal: bool = False  # can hide the future
    bidirectional: bool = True  # can read both ways
    cross: bool = False  # can read a context of another length
    compiles: bool = True  # torch.compile(fullgraph=True) works
    note: str = ""  # the reason behind a False


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What surrounds a mixer, the same for every mechanism: widths, heads, direction, positions."""

    dim: int
    heads: int = 8
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: dim / heads
    causal: bool = False
    length: int | None = None  # longest sequence, where parameters depend on it
    layer: int = 0  # which layer of the model, from 0: for settings that differ by layer
    positions: Any | None = None  # Rope(), Alibi(), T5Bias()
    dropout: float = 0.0
    bias: bool = True
    seed: int = 0
    projection: Any = field(default_factory=DenseProjection)  # or a spec: "multiplicative"

    def __post_init__(self) -> None:
        if isinstance(self.projection, str):
            object.__setattr__(self, "projection", PROJECTIONS.parse(self.projection))
        if not hasattr(self.projection, "neighbours"):
            raise WeftError(
                f"projection is one of {', '.join(PROJECTIONS)}, or its config; "
                f"got {self.projection!r}"
            )
        for name in ("dim", "heads"):
            if getattr(self, name) < 1:
                raise WeftError(f"{name} is at least 1; got {name}={getattr(self, name)}")
        if self.head_dim is None:
            if self.dim % self.heads:
                raise WeftError(
                    f"dim is divided among the heads: dim={self.dim} is no multiple of "
                    f"heads={self.heads}; give head_dim to choose the width of a head freely"
                )
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise WeftError(
                f"query heads share key heads evenly: heads={self.heads} is no multiple of "
                f"kv_heads={self.kv_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise WeftError(f"dropout is in [0, 1); got {self.dropout}")


class Mixer(nn.Module):
    """Mixes tokens: every output row is a function of the rows of x it may read."""

    # Names of further (b, n) tensors that `forward` takes and `mix` receives beside the tokens.
    marks: tuple[str, ...] = ()
    # Which projections of the frame it takes: none, since it has its own; those that project each
    # token by itself; or all, since its state hands on what they remember.
    projections: Literal["none", "tokenwise", "all"] = "none"
    # Whether its fast kernels on a GPU run outside of compiled graphs, so that it does as well.
    outside_graphs = False

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__()
        self.config, self.frame = config, frame
        self._check_projection()
        traits = config.traits
        if frame.causal and not traits.causal:
            able = [name for name in MIXERS if MIXERS[name]().traits.causal]
            reason = traits.note or "its output reads later tokens"
            raise Unsupported(
                f"{config.name} cannot be causal: {reason}; "
                f"use causal=False, or one that can: {', '.join(able)}"
            )
        if not frame.causal and not traits.bidirectional:
            raise Unsupported(f"{config.name} is causal by construction; use causal=True")

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        aligned: bool = False,
        **marks: Tensor,
    ) -> Tensor:
        """(b, n, c) -> (b, n, c). `valid` (b, n) is True where a token is real; padding yields 0.

        With a `context` (b, m, c) the keys and values come from there (cross-attention). Some
        mechanisms take `marks`, tensors (b, n) that say more about each token. `aligned`: the
        caller knows that the real tokens of x stand first in each row, so none has to move.
        """
        _check_sequence("x", x, self.frame.dim)
        if context is None:
            if context_valid is not None:
                raise WeftError("context_valid describes a context, but no context was given")
        else:
            self._check_context(x, context)
            if context_valid is not None:
                _check_valid("context_valid", context_valid, context)
                context, context_valid, _ = left_align(context, context_valid)
        self._check_marks(marks, x)
        if valid is None:
            return self.mix(x, None, context, context_valid, **marks)
        _check_valid("valid", valid, x)
        if aligned:
            y = self.mix(self.cleared(x, valid), valid, context, context_valid, **marks)
            return y.masked_fill(~valid[..., None], 0.0)
        moved, real, order = left_align(x, valid)
        moved = self.cleared(moved, real)
        marks = {name: mark.gather(1, order) for name, mark in marks.items()}
        return restore(self.mix(moved, real, context, context_valid, **marks), order, valid)

    def front(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """The first `count` rows of `forward`, and no others: (b, n, c) -> (b, count, c).

        Real tokens stand first in each row, at least `count` of them. A mechanism whose other rows
        need not be computed for it defines its own.
        """
        return self(x, valid=valid, aligned=True)[:, :count]

    def cleared(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """x (b, n, c) with zeros as padding, where projections would read it; real tokens first."""
        if valid is None or self.frame.causal or not self.frame.projection.neighbours:
            return x
        return x.masked_fill(~valid[..., None], 0.0)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
    ) -> Tensor:
        """The mechanism: (b, n, c) -> (b, n, c); real tokens stand first, padding is don't-care."""
        raise NotImplementedError(f"{type(self).__name__} has to define mix")

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """The same function written plainly from the equation: slow, and the truth of the tests."""
        raise NotImplementedError(f"{type(self).__name__} has to define reference")

    def start(self, batch: int = 1) -> State:
        """An empty decoding state on the parameters' device and dtype."""
        raise self._cannot_stream()

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """New tokens (b, n, c) and the state so far -> their outputs (b, n, c) and the next state.

        The state passed in is consumed: keep only the one returned.
        """
        raise self._cannot_stream()

    def absorb(self, x: Tensor, state: State) -> State:
        """The state after new tokens (b, n, c) whose outputs no one asks for; consumes the old."""
        return self.step(x, state)[1]

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the state holds after this many tokens."""
        raise self._cannot_stream()

    def penalty(self) -> Tensor | None:
        """What a training loop adds to the loss after a forward, weighted already; None: nothing.

        It reads parameters and detached tensors alone, so a forward that is recomputed in
        backward, or runs without gradients, leaves it right.
        """
        return None

    def advance(self, step: int) -> None:
        """What changes between steps: a training loop calls it after optimiser step `step`, from 1.

        The outcome is a function of parameters, buffers and `step`, not of how often it is called.
        """

    def _cannot_stream(self) -> Unsupported:
        if self.config.traits.causal and not self.frame.causal:
            return Unsupported(f"decoding needs a causal {self.config.name}; build it causal=True")
        return Unsupported(
            f"{self.config.name} does not stream: "
            f"{self.config.traits.note or 'its output reads later tokens'}"
        )

    def _check_projection(self) -> None:
        wanted = self.frame.projection
        if isinstance(wanted, DenseProjection) and wanted.out:
            return
        if self.projections == "none":
            raise Unsupported(
                f"{self.config.name} has projections of its own; got projection={wanted}; "
                "use projection='dense'"
            )
        if wanted.neighbours and self.projections != "all":
            raise Unsupported(
                f"{self.config.name} projects each token by itself, and {wanted.name} reads its "
                "neighbours; use projection='multiplicative' or 'dense'"
            )

    def _check_marks(self, marks: dict[str, Tensor], x: Tensor) -> None:
        for name, mark in marks.items():
            if name not in self.marks:
                takes = f"it takes {', '.join(self.marks)}" if self.marks else "it takes none"
                raise WeftError(f"{self.config.name} knows no mark {name!r}; {takes}")
            if mark.shape != x.shape[:2]:
                raise WeftError(
                    f"{name} is (batch, length) = {tuple(x.shape[:2])}; got {tuple(mark.shape)}"
                )

    def _check_context(self, x: Tensor, context: Tensor) -> None:
        if not self.config.traits.cross:
            able = [name for name in MIXERS if MIXERS[name]().traits.cross]
            reason = self.config.traits.note or "it mixes one sequence"
            raise Unsupported(
                f"{self.config.name} cannot read a context: {reason}; "
                f"mixers that can: {', '.join(able)}"
            )
        _check_sequence("context", context, self.frame.dim)
        if len(context) != len(x):
            raise WeftError(f"x and context hold {len(x)} and {len(context)} rows; they must agree")


class AttentionMixer(Mixer):
    """Projections, heads, positions and output around a core that maps q, k, v to values."""

    projections = "tokenwise"
    # Whether `attention`, not causal, can be asked for the first queries alone, over all keys.
    queries_apart = False

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__(config, frame)
        self.project = frame.projection.build(frame)
        self.positions = build_positions(frame.positions, frame.heads, frame.head_dim)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        **marks: Tensor,
    ) -> Tensor:
        """Project, attend, project back."""
        q, k, v = self.heads(x, context)
        real = valid if context is None else context_valid
        return self.project.out(self.attention(q, k, v, real, context is not None, **marks))

    def front(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """Few queries over all keys."""
        if self.frame.causal or not self.queries_apart:
            return super().front(x, count, valid)
        q, k, v = self.front_heads(self.cleared(x, valid), count)
        return self.project.out(self.attention(q, k, v, valid, crossing=False))

    def front_heads(
        self, x: Tensor, count: int, reach: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, count, d) of the first tokens, k and v (b, g, reach, d) of as many as asked."""
        if self.frame.projection.neighbours:
            q, k, v = self.heads(x)
            return q[:, :, :count], k[:, :, :reach], v[:, :, :reach]
        x = x[:, :reach]
        index = torch.arange(x.shape[1], device=x.device)
        q = self.positions.rotate(self.project.q(x[:, :count]), index[:count])
        return q, self.positions.rotate(self.project.k(x), index), self.project.v(x)

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """Project, attend by the plain equation, project back. Real tokens stand first."""
        q, k, v = self.heads(self.cleared(x, valid), context)
        keys_valid = valid if context is None else context_valid
        y = self.plain_attention(q, k, v, keys_valid, crossing=context is not None)
        return self.project.out(y)

    def heads(
        self, x: Tensor, context: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, g, m, d), positions applied; x begins at index `start`."""
        if context is not None:
            return self.project.q(x), self.project.k(context), self.project.v(context)
        return self._turned(*self.project.qkv(x), start)

    def next_heads(
        self, x: Tensor, state: State
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor | None]]:
        """q, k, v of the tokens (b, n, c) behind a state, and what the next state takes over."""
        projected, memory = self.project.step(x, state.memory)
        return *self._turned(*projected, state.position), {"memory": memory}

    def _turned(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        index = torch.arange(start, start + q.shape[2], device=q.device)
        return self.positions.rotate(q, index), self.positions.rotate(k, index), v

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """The mechanism: q (b, h, n, d), k, v (b, g, m, d), valid (b, m) -> (b, h, n, d)."""
        raise NotImplementedError(f"{type(self).__name__} has to define attention")

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool
    ) -> Tensor:
        """`attention` written plainly from the equation, O(n²)."""
        raise NotImplementedError(f"{type(self).__name__} has to define plain_attention")

    @property
    def dropout(self) -> float:
        """Attention dropout now: 0 outside training."""
        return self.frame.dropout if self.training else 0.0


def _check_sequence(name: str, x: Tensor, dim: int) -> None:
    if x.dim() != 3 or x.shape[-1] != dim:
        raise WeftError(f"{name} is (batch, length, {dim}); got {tuple(x.shape)}")


def _check_valid(name: str, valid: Tensor, x: Tensor) -> None:
    if valid.dtype != torch.bool or valid.shape != x.shape[:2]:
        raise WeftError(
            f"{name} is a boolean (batch, length) = {tuple(x.shape[:2])}, True where a token is "
            f"real; got {valid.dtype} {tuple(valid.shape)}"
        )

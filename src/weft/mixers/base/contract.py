"""The one contract of token mixing, and the code shared by every mechanism.

    forward(x, valid=, context=)  (b, n, c) -> (b, n, c), any length, any padding
    start(batch) -> State         causal mixers: decoding
    step(x, state) -> y, State    one or several new tokens; any split equals forward

A mechanism is a frozen config (its settings, its `traits`, `build(frame)`) and a module that
implements `mix`, `reference` and, where it streams, `start` and `step`. In `mix`, `valid` is
either None or True for real tokens, which all come first in their row: `forward` has moved them
there and moves the results back, so no mechanism handles padding anywhere else.

Training has two hooks, which do nothing unless a mechanism defines them: `penalty()` is added to
the loss (`penalties(model)` sums it over a model), `advance(step)` follows an optimiser step.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.padding import left_align, real_tokens, restore, zero_padding
from weft.layers.positions import build_positions
from weft.layers.projections.dense import DenseProjection
from weft.layers.state import State
from weft.mixers.base.frame import Frame
from weft.mixers.base.registry import MixerRegistry

MIXERS = MixerRegistry(Frame)
MixerConfig = Annotated[Any, MIXERS]  # a config, a table or a spec string


class Mixer(nn.Module):
    """Mixes tokens: every output row is a function of the rows of x it may read."""

    # Which projections of the frame it takes: none, since it has its own; those that project each
    # token by itself; or all, since its state carries their memory.
    projections: Literal["none", "tokenwise", "all"] = "none"
    # Whether its fast kernels on a GPU run outside of compiled graphs, so that it does as well.
    outside_graphs = False
    # Set where sequences are split over processes: what mixes a shard (weft.scale.context).
    shards: Any = None

    def __init__(self, config: Any, frame: Frame) -> None:
        super().__init__()
        self.config, self.frame = config, frame
        self._check_projection()
        traits = config.traits
        # What `forward` takes, and `mix` and `reference` receive, beside the tokens.
        self.marks = {mark.name: mark for mark in traits.marks}
        if frame.causal and not traits.causal:
            able = [name for name in MIXERS if MIXERS[name]().traits.causal]
            reason = traits.note or "its output reads later tokens"
            raise Unsupported(
                f"{config.name} cannot be causal: {reason}; "
                f"use causal=False, or one that can: {', '.join(able)}"
            )
        if not frame.causal and not traits.bidirectional:
            raise Unsupported(
                f"{config.name} is causal by construction; use causal=True: Frame(causal=True) for "
                "a layer, a Decoder instead of an Encoder for a model, in a settings file "
                '[model] trunk = "decoder" (pool = "last" then reads the token that has seen all)'
            )

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        aligned: bool = False,
        **marks: Tensor,
    ) -> Tensor:
        """(b, n, c) -> (b, n, c). `valid` (b, n) is True where a token is real; padding yields 0.

        `attention_mask` (b, n), 1 where a token is real, may stand for `valid`. With a `context`
        (b, m, c) the keys and values come from there (cross-attention). Some mechanisms take
        `marks`, tensors (b, n) that say more about each token. `aligned`: the caller knows that
        the real tokens of x come first in each row, so nothing has to move.
        """
        _check_sequence("x", x, self.frame.dim)
        valid = real_tokens(x, valid, attention_mask)
        if context is None:
            if context_valid is not None:
                raise WeftError("context_valid describes a context, but no context was given")
        else:
            self._check_context(x, context)
            if context_valid is not None:
                _check_valid("context_valid", context_valid, context)
                context, context_valid, _ = left_align(context, context_valid)
                context = zero_padding(context, context_valid)
        self._check_marks(marks, x)
        if valid is not None:
            _check_valid("valid", valid, x)
        if self.shards is not None:
            return self.shards.run(self, x, valid, context, context_valid, marks)
        if valid is None:
            return self.mix(x, None, context, context_valid, **marks)
        if aligned:
            y = self.mix(zero_padding(x, valid), valid, context, context_valid, **marks)
            return y.masked_fill(~valid[..., None], 0.0)
        moved, real, order = left_align(x, valid)
        moved = zero_padding(moved, real)
        marks = {name: mark.gather(1, order) for name, mark in marks.items()}
        return restore(self.mix(moved, real, context, context_valid, **marks), order, valid)

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """The first `count` rows of `forward`, and no others: (b, n, c) -> (b, count, c).

        Real tokens come first in each row, at least `count` of them. A mechanism whose other rows
        need not be computed for it defines its own.
        """
        return self(x, valid=valid, aligned=True)[:, :count]

    def mark_registers(self, name: str, mark: Tensor, count: int) -> Tensor:
        """The mark (b, count) of registers, in front of tokens marked (b, n): False or 0."""
        return mark.new_zeros(len(mark), count)

    def mix(
        self,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        **marks: Tensor,
    ) -> Tensor:
        """The mechanism: (b, n, c) -> (b, n, c); real tokens come first, padding is 0."""
        raise NotImplementedError(f"{type(self).__name__} has to define mix")

    def reference(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        **marks: Tensor,
    ) -> Tensor:
        """The same function written from the equation: slow, and the reference of the tests."""
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
        """The state after new tokens (b, n, c) whose outputs are unused; consumes the old state."""
        return self.step(x, state)[1]

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the state holds after this many tokens."""
        raise self._cannot_stream()

    def letters(self, tokens: int) -> dict[str, int]:
        """Sizes in the formulas of its traits beside those of the frame and the config."""
        return {}

    def penalty(self) -> Tensor | None:
        """What a training loop adds to the loss after a forward, weighted already; None: nothing.

        It reads parameters and detached tensors alone, so a forward that is recomputed in
        backward, or runs without gradients, leaves it right.
        """
        return None

    @property
    def changes(self) -> bool:
        """Whether `advance` does anything: a recorded update would not see it."""
        return type(self).advance is not Mixer.advance

    def advance(self, step: int) -> None:
        """What changes between steps: a training loop calls it after optimiser step `step`, from 1.

        The outcome is a function of parameters, buffers and `step`, not of how often it is called.
        """

    def refuse_positions(self, reason: str, instead: str = "use positions=None") -> None:
        """Refuse positions inside attention."""
        if self.frame.positions is not None:
            raise Unsupported(f"{reason}; got positions={self.frame.positions}; {instead}")

    def refuse_groups(self) -> None:
        """Refuse keys that several heads share."""
        if self.frame.kv_heads != self.frame.heads:
            raise Unsupported(
                f"{self.config.name} has no keys to group; got kv_heads={self.frame.kv_heads}; "
                "use kv_heads=None"
            )

    def _need_causal(self) -> None:
        """Refuse to decode unless the mixer was built causal."""
        if not self.frame.causal:
            raise self._cannot_stream()

    def _cannot_stream(self) -> Unsupported:
        if self.config.traits.causal and not self.frame.causal:
            return Unsupported(f"decoding needs a causal {self.config.name}; build it causal=True")
        return Unsupported(
            f"{self.config.name} does not stream: "
            f"{self.config.traits.note or 'its output reads later tokens'}"
        )

    def _check_projection(self) -> None:
        wanted = self.frame.projection
        if wanted == DenseProjection():
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
                raise WeftError(f"{self.config.name} does not take the mark {name!r}; {takes}")
            self.marks[name].check(mark, x.shape[:2])

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


class ProjectionMemory(TypedDict):
    """The part of a state that belongs to the projections."""

    memory: Tensor | None


class AttentionMixer(Mixer):
    """Projections, heads, positions and output around a core that maps q, k, v to values."""

    projections = "tokenwise"
    # Whether `attention`, not causal, can compute the first queries only, over all keys.
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

    def first_rows(self, x: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """Few queries over all keys."""
        if self.frame.causal or not self.queries_apart:
            return super().first_rows(x, count, valid)
        q, k, v = self.first_rows_heads(zero_padding(x, valid), count)
        return self.project.out(self.attention(q, k, v, valid, crossing=False))

    def first_rows_heads(
        self, x: Tensor, count: int, reach: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, count, d) of the first tokens, k and v (b, g, reach, d) of the first `reach`."""
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
        **marks: Tensor,
    ) -> Tensor:
        """Project, attend by the plain equation, project back. Real tokens come first."""
        q, k, v = self.heads(zero_padding(x, valid), context)
        keys_valid = valid if context is None else context_valid
        y = self.plain_attention(q, k, v, keys_valid, crossing=context is not None, **marks)
        return self.project.out(y)

    def heads(
        self, x: Tensor, context: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, g, m, d), positions applied; x begins at index `start`."""
        if context is not None:
            return self.project.q(x), self.project.k(context), self.project.v(context)
        q, k, v = self.project.qkv(x)
        return self._turned(q, k, v, start)

    def next_heads(
        self, x: Tensor, state: State
    ) -> tuple[Tensor, Tensor, Tensor, ProjectionMemory]:
        """q, k, v of the tokens (b, n, c) that follow a state, and the projections' memory."""
        (q, k, v), memory = self.project.step(x, state.memory)
        q, k, v = self._turned(q, k, v, state.position)
        return q, k, v, {"memory": memory}

    def _turned(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        index = torch.arange(start, start + q.shape[2], device=q.device)
        return self.positions.rotate(q, index), self.positions.rotate(k, index), v

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool, **marks: Tensor
    ) -> Tensor:
        """The mechanism: q (b, h, n, d), k, v (b, g, m, d), valid (b, m) -> (b, h, n, d)."""
        raise NotImplementedError(f"{type(self).__name__} has to define attention")

    def plain_attention(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, crossing: bool, **marks: Tensor
    ) -> Tensor:
        """`attention` written plainly from the equation, O(n²)."""
        raise NotImplementedError(f"{type(self).__name__} has to define plain_attention")

    def _refuse_bias(self, reason: str) -> None:
        """Refuse position schemes that add to the score of each pair of tokens."""
        if self.positions.biased:
            raise Unsupported(
                f"{reason}; got positions={self.frame.positions}; use positions=rope, or add "
                "positions to the embedding"
            )

    @property
    def dropout(self) -> float:
        """Attention dropout now: 0 outside training."""
        return self.frame.dropout if self.training else 0.0


def check_plain_heads(config: Any, frame: Frame) -> None:
    """Refuse scaled or normalised heads where a mechanism multiplies by further matrices itself."""
    if isinstance(frame.projection, DenseProjection) and not frame.projection.plain:
        raise Unsupported(
            f"{config.name} has matrices besides those of the projection, so its queries and keys "
            f"are neither scaled nor normalised; got projection={frame.projection}"
        )


def _check_sequence(name: str, x: Tensor, dim: int) -> None:
    if x.dim() != 3 or x.shape[-1] != dim:
        raise WeftError(f"{name} is (batch, length, {dim}); got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise WeftError(f"{name} holds numbers of some float type; got {x.dtype}: embed ids first")


def _check_valid(name: str, valid: Tensor, x: Tensor) -> None:
    if valid.dtype != torch.bool or valid.shape != x.shape[:2]:
        raise WeftError(
            f"{name} is a boolean (batch, length) = {tuple(x.shape[:2])}, True where a token is "
            f"real; got {valid.dtype} {tuple(valid.shape)}"
        )

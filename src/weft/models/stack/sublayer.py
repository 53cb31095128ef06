"""Sublayers: what one letter of an order string builds.

    pre:   x + drop(f(norm(x)))          post:  norm(x + drop(f(x)))
    both:  x + drop(norm'(f(norm(x))))

f is a token mixer ('s'), a mixer that reads a context ('c'), both in parallel ('p': their sum), or
a feed-forward ('f'). A sublayer offers its *branch* (all but the sum) and its *join* (the sum), so
that plain, checkpointed and reversible stacks, and decoding, are made of the same two. How the
branch joins the stream is the residual connection's (`models/stack/residual.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.marks import Marks
from weft.layers.norm import Norm
from weft.mixers import Mixer, State
from weft.mixers.base.masked_mix import masked_mix
from weft.models.stack.residual import Plain


class StackInputs(NamedTuple):
    """What every sublayer of a stack may read besides x."""

    valid: Tensor | None = None  # (b, n)
    context: Tensor | None = None  # (b, m, c), or (b, reads, m, c): one for each reading sublayer
    context_valid: Tensor | None = None  # (b, m)
    seen: Tensor | None = None  # (b, n, n): who reads whom, where that differs from row to row
    places: Tensor | None = None  # (b, n): positions of the tokens, given with `seen`
    aligned: bool = False  # real tokens come first in each row
    first_rows: int | None = None  # compute only that many of the first rows; None: all
    marks: Marks | None = None  # what tokens say about themselves, each (b, n − registers)


_PLAIN = Plain()


class Sublayer(nn.Module):
    """Norm, body and dropout; subclasses say how the body is called."""

    letter = ""

    def __init__(
        self, body: nn.Module, norm: Norm, dim: int, dropout: float, residual: Any = _PLAIN
    ) -> None:
        super().__init__()
        self.pre = norm.place != "post"
        self.norm = norm.build(dim)
        self.last_norm = norm.build(dim) if norm.place == "both" else None
        self.body = body
        self.dropout = nn.Dropout(dropout)
        self.residual = residual.build()

    @property
    def mixer(self) -> Mixer | None:
        """What mixes the tokens of the sequence, if it is a sublayer that does."""
        return None

    def forward(self, x: Tensor, given: StackInputs) -> Tensor:
        """(b, n, c) -> (b, n, c), residual included."""
        return self.join(x, self.branch(x, given))

    def branch(self, x: Tensor, given: StackInputs) -> Tensor:
        """What is added to x."""
        y = self.call(self.residual.enter(self.norm(x) if self.pre else x), given)
        return self.leave(y)

    def leave(self, y: Tensor) -> Tensor:
        """What is added to x, of the body's result."""
        y = y if self.last_norm is None else self.last_norm(y)
        return self.dropout(self.residual.leave(y))

    def start(self, batch: int = 1) -> State | None:
        """The state before the first token; None for a body without memory."""
        return None

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the state holds after this many tokens."""
        return 0

    def step(
        self, x: Tensor, given: StackInputs, state: State | None
    ) -> tuple[Tensor, State | None]:
        """`branch` for the next tokens of a sequence, and the state after them."""
        entered = self.residual.enter(self.norm(x) if self.pre else x)
        y, state = self.call_step(entered, given, state)
        return self.leave(y), state

    def absorb(self, x: Tensor, given: StackInputs, state: State | None) -> State | None:
        """The state after tokens whose output of this sublayer is unused."""
        return None if state is None else self.step(x, given, state)[1]

    def join(self, x: Tensor, branch: Tensor) -> Tensor:
        """The residual sum, normalised if the norm comes after it."""
        return x + branch if self.pre else self.norm(x + branch)

    def call(self, x: Tensor, given: StackInputs) -> Tensor:
        """The body on x (b, n, c)."""
        raise NotImplementedError(f"{type(self).__name__} has to define call")

    def call_step(
        self, x: Tensor, given: StackInputs, state: State | None
    ) -> tuple[Tensor, State | None]:
        """The body on the next tokens; a body without memory just runs."""
        return self.call(x, given), None


def read_context(mixer: Mixer, x: Tensor, given: StackInputs) -> Tensor:
    """x (b, n, c) after reading the context."""
    if given.context is None:
        raise WeftError("a 'c' sublayer reads a context, and none was given; pass context=...")
    return mixer(
        x,
        valid=given.valid,
        context=given.context,
        context_valid=given.context_valid,
        aligned=given.aligned,
    )


class MixingSublayer(Sublayer):
    """Tokens read their own sequence: what decoding remembers is the mixer's state."""

    body: Any  # has a `mixer`

    @property
    def mixer(self) -> Mixer:
        """The one that reads its own sequence."""
        return self.body.mixer

    def marks(self, x: Tensor, given: StackInputs) -> dict[str, Tensor]:
        """Those of the stack's marks that its mixer knows, registers included: each (b, n)."""
        mixer, found = self.mixer, {}
        for name, mark in (given.marks or {}).items():
            if name in mixer.marks:
                registers = mixer.mark_registers(name, mark, x.shape[1] - mark.shape[1])
                found[name] = torch.cat((registers, mark), dim=1)
        return found

    def start(self, batch: int = 1) -> State:
        """The mixer's."""
        return self.mixer.start(batch)

    def state_size(self, tokens: int) -> int:
        """The mixer's."""
        return self.mixer.state_size(tokens)


class SelfSublayer(MixingSublayer):
    """'s': tokens read tokens of their own sequence."""

    letter = "s"
    body: Mixer

    @property
    def mixer(self) -> Mixer:
        """The body."""
        return self.body

    def forward(self, x: Tensor, given: StackInputs) -> Tensor:
        """(b, n, c) -> (b, n, c), or only `first_rows`, residual included."""
        return self.join(x[:, : given.first_rows], self.branch(x, given))

    def absorb(self, x: Tensor, given: StackInputs, state: State | None) -> State | None:
        """The mixer's, which may be cheaper than a step."""
        assert state is not None
        return self.body.absorb(self.residual.enter(self.norm(x) if self.pre else x), state)

    def call(self, x: Tensor, given: StackInputs) -> Tensor:
        """Mix the sequence."""
        if given.seen is not None:
            assert given.places is not None
            return masked_mix(self.body, x, given.seen, given.places)
        marks = self.marks(x, given)
        if given.first_rows is not None and not marks:
            return self.body.first_rows(x, given.first_rows, given.valid)
        y = self.body(x, valid=given.valid, aligned=given.aligned, **marks)
        return y[:, : given.first_rows]

    def call_step(
        self, x: Tensor, given: StackInputs, state: State | None
    ) -> tuple[Tensor, State | None]:
        """Mix the next tokens with what the state remembers."""
        assert state is not None
        return self.body.step(x, state)


class CrossSublayer(Sublayer):
    """'c': tokens read the context. Its keys are computed at each call; decoding caches none."""

    letter = "c"
    body: Mixer

    def call(self, x: Tensor, given: StackInputs) -> Tensor:
        """Read the context."""
        return read_context(self.body, x, given)


class Side(nn.Module):
    """A mixer and one that reads a context: the body of a 'p'."""

    def __init__(self, mixer: Mixer, cross: Mixer) -> None:
        super().__init__()
        self.mixer, self.cross = mixer, cross


class ParallelSublayer(MixingSublayer):
    """'p': tokens read their own sequence and the context, and both results are added."""

    letter = "p"
    body: Side

    def call(self, x: Tensor, given: StackInputs) -> Tensor:
        """Mix the sequence, and read the context."""
        own = self.body.mixer(x, valid=given.valid, aligned=given.aligned, **self.marks(x, given))
        return own + read_context(self.body.cross, x, given)

    def call_step(
        self, x: Tensor, given: StackInputs, state: State | None
    ) -> tuple[Tensor, State | None]:
        """The same for the next tokens."""
        assert state is not None
        y, state = self.body.mixer.step(x, state)
        return y + read_context(self.body.cross, x, given), state


class FeedForwardSublayer(Sublayer):
    """'f': each token independently."""

    letter = "f"
    body: Any  # a FeedForward; one with memory also has start, step and state_size

    def call(self, x: Tensor, given: StackInputs) -> Tensor:
        """Transform each token."""
        if given.seen is not None and hasattr(self.body, "start"):
            raise Unsupported(
                f"{self.body.config} remembers earlier tokens, so it cannot run where each token "
                "may read others: take a feed-forward without memory"
            )
        return self.body(x, valid=given.valid)

    def start(self, batch: int = 1) -> State | None:
        """That of a feed-forward with memory; most have none."""
        return self.body.start(batch) if hasattr(self.body, "start") else None

    def state_size(self, tokens: int) -> int:
        """That of a feed-forward with memory."""
        return self.body.state_size(tokens) if hasattr(self.body, "start") else 0

    def call_step(
        self, x: Tensor, given: StackInputs, state: State | None
    ) -> tuple[Tensor, State | None]:
        """The next tokens; a feed-forward with memory steps."""
        return self.body.step(x, state) if hasattr(self.body, "start") else (self.body(x), None)

"""Sublayers: what one letter of an order string builds.

    pre:   x + drop(f(norm(x)))          post:  norm(x + drop(f(x)))

f is a token mixer ('s'), a mixer that reads a context ('c'), or a feed-forward ('f'). A sublayer
offers its *branch* (all but the sum) and its *join* (the sum), so that plain, checkpointed and
reversible stacks, and decoding, are made of the same two.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward import FeedForward
from weft.layers.norm import Norm
from weft.mixers import Mixer, State


class Given(NamedTuple):
    """What every sublayer of a stack may read besides x."""

    valid: Tensor | None = None  # (b, n)
    context: Tensor | None = None  # (b, m, c)
    context_valid: Tensor | None = None  # (b, m)


class Sublayer(nn.Module):
    """Norm, body and dropout; subclasses say how the body is called."""

    letter = ""

    def __init__(self, body: nn.Module, norm: Norm, dim: int, dropout: float) -> None:
        super().__init__()
        self.pre = norm.place == "pre"
        self.norm = norm.build(dim)
        self.body = body
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, given: Given) -> Tensor:
        """(b, n, c) -> (b, n, c), residual included."""
        return self.join(x, self.branch(x, given))

    def branch(self, x: Tensor, given: Given) -> Tensor:
        """What is added to x."""
        return self.dropout(self.call(self.norm(x) if self.pre else x, given))

    def step(self, x: Tensor, given: Given, state: State | None) -> tuple[Tensor, State | None]:
        """`branch` for the next tokens of a sequence, and the state after them."""
        y, state = self.call_step(self.norm(x) if self.pre else x, given, state)
        return self.dropout(y), state

    def join(self, x: Tensor, branch: Tensor) -> Tensor:
        """The residual sum, normalised if the norm stands after it."""
        return x + branch if self.pre else self.norm(x + branch)

    def call(self, x: Tensor, given: Given) -> Tensor:
        """The body on x (b, n, c)."""
        raise NotImplementedError(f"{type(self).__name__} has to define call")

    def call_step(
        self, x: Tensor, given: Given, state: State | None
    ) -> tuple[Tensor, State | None]:
        """The body on the next tokens; a body without memory just runs."""
        return self.call(x, given), None


class SelfSublayer(Sublayer):
    """'s': tokens read tokens of their own sequence."""

    letter = "s"
    body: Mixer

    def call(self, x: Tensor, given: Given) -> Tensor:
        """Mix the sequence."""
        return self.body(x, valid=given.valid)

    def call_step(
        self, x: Tensor, given: Given, state: State | None
    ) -> tuple[Tensor, State | None]:
        """Mix the next tokens with what the state remembers."""
        return self.body.step(x, state)


class CrossSublayer(Sublayer):
    """'c': tokens read the context. Its keys are computed at each call; decoding caches none."""

    letter = "c"
    body: Mixer

    def call(self, x: Tensor, given: Given) -> Tensor:
        """Read the context."""
        if given.context is None:
            raise WeftError("a 'c' sublayer reads a context, and none was given; pass context=...")
        return self.body(
            x, valid=given.valid, context=given.context, context_valid=given.context_valid
        )


class FeedForwardSublayer(Sublayer):
    """'f': each token by itself."""

    letter = "f"
    body: FeedForward

    def call(self, x: Tensor, given: Given) -> Tensor:
        """Transform each token."""
        return self.body(x, valid=given.valid)

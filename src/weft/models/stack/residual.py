"""Residual connections: how a sublayer's branch f joins the stream x.

    plain    x + f(x)             matrices named `to_out` start 1/√(number of sublayers) as large
    rezero   x + α f(x)           α one number, 0 at the start: sublayers begin as the identity
    fixup    x + g f(x + b)       g = 1 and b = 0 at the start; no norm anywhere

Fixup starts matrices as N(0, 2 / inputs). In a branch of m matrices all but the last are then
multiplied by L^(−1/(2m−2)), L the number of sublayers of the whole model, and the last, `to_out`,
is 0 with its bias. So the model begins as the identity, and one step of training changes its output
by O(step) at any depth. It wants float32. ReZero needs neither a warm-up nor a norm, but takes one.
f includes the norm that stands before it, if there is one.

Papers: ReZero, Bachlechner et al. 2020, https://arxiv.org/abs/2003.04887; Fixup, Zhang et al. 2019,
section 3, https://arxiv.org/abs/1901.09321
Differs from them: Fixup's biases inside a branch are the ordinary ones of its maps, not scalars.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.norm import Norm
from weft.registry import Registry

RESIDUALS = Registry("residual connection")
ResidualConfig = Annotated[Any, RESIDUALS]  # a config, a table or a spec string


class Connection(nn.Module):
    """The plain connection, and what the others change of it."""

    def enter(self, x: Tensor) -> Tensor:
        """What the body reads, of the (normalised) stream."""
        return x

    def leave(self, y: Tensor) -> Tensor:
        """What is added to the stream, of the body's result."""
        return y


@RESIDUALS.register("plain")
@dataclass(frozen=True, kw_only=True)
class Plain:
    """x + f(x)."""

    def check(self, norm: Norm) -> None:
        """Any norm will do."""

    def build(self) -> Connection:
        """The connection of one sublayer."""
        return Connection()

    @torch.no_grad()
    def prepare(self, bodies: Iterable[nn.Module], sublayers: int, norm: Norm) -> None:
        """Shrink what writes into a stream that no norm keeps small: GPT-2's rule."""
        if norm.place == "pre":
            for body in bodies:
                for out in outputs(body):
                    out.weight.mul_(sublayers**-0.5)


@RESIDUALS.register("rezero")
@dataclass(frozen=True, kw_only=True)
class ReZero:
    """x + α f(x), α one number that starts at 0."""

    def check(self, norm: Norm) -> None:
        """Before the sublayers, or none: a norm after the sum would not be the identity."""
        if norm.kind != "none" and norm.place == "post":
            raise WeftError(
                "rezero begins as the identity, which a norm after the sum is not; "
                "use Norm(place='pre') or Norm(kind='none')"
            )

    def build(self) -> Connection:
        """The connection of one sublayer."""
        return ReZeroConnection()

    def prepare(self, bodies: Iterable[nn.Module], sublayers: int, norm: Norm) -> None:
        """Bodies start as they are: α hides them."""


class ReZeroConnection(Connection):
    """One learned number, α."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def leave(self, y: Tensor) -> Tensor:
        """α y."""
        return self.scale * y


@RESIDUALS.register("fixup")
@dataclass(frozen=True, kw_only=True)
class Fixup:
    """x + g f(x + b), matrices scaled by depth and the last one 0 at the start: no norms."""

    sublayers: int | None = None  # of the whole model; None: of the stack, or of both (seq2seq)

    def __post_init__(self) -> None:
        if self.sublayers is not None and self.sublayers < 1:
            raise WeftError(f"fixup counts at least 1 sublayer; got sublayers={self.sublayers}")

    def check(self, norm: Norm) -> None:
        """No norm: this is what Fixup replaces."""
        if norm.kind != "none":
            raise WeftError(
                f"fixup takes the place of norms; use Norm(kind='none'), got kind={norm.kind!r}"
            )

    def build(self) -> Connection:
        """The connection of one sublayer."""
        return FixupConnection()

    @torch.no_grad()
    def prepare(self, bodies: Iterable[nn.Module], sublayers: int, norm: Norm) -> None:
        """He's initialisation, scaled by depth; the last matrix of each branch is 0."""
        depth = self.sublayers or sublayers
        for body in bodies:
            last = outputs(body)
            if not last:
                raise Unsupported(
                    "fixup starts the last matrix of a branch, named to_out, at 0, and "
                    f"{type(body).__name__} has none; use residual='rezero'"
                )
            maps = [m for m in body.modules() if isinstance(m, nn.Linear) and m not in last]
            for each in maps:
                nn.init.kaiming_normal_(each.weight)
                each.weight.mul_(depth ** (-0.5 / len(maps)))
            for each in last:
                for parameter in each.parameters():
                    parameter.zero_()


class FixupConnection(Connection):
    """A scalar bias before the body and a scalar factor after it."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(()))

    def enter(self, x: Tensor) -> Tensor:
        """x + b."""
        return x + self.bias

    def leave(self, y: Tensor) -> Tensor:
        """g y."""
        return self.scale * y


def outputs(body: nn.Module) -> list[Any]:
    """The maps of a body that write into the stream: those named `to_out`."""
    return [
        module
        for name, module in body.named_modules()
        if name.rpartition(".")[2] == "to_out" and hasattr(module, "weight")
    ]

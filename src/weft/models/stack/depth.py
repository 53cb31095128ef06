"""Depth: how the layers of a stack are passed through.

    plain        every layer once
    layer_drop   in training each layer is skipped with probability `rate`, nothing is rescaled;
                 in evaluation all run. One can then leave layers out for good (`prune_layers`)
    universal    the whole order again and again, until each token halts
    (`models/stack/universal.py`)

A rule gets x and `through(x, layer)`, which runs one layer, in a forward or in a step of decoding.

LayerDrop: what is skipped is a function of (seed, step), the same in every process, so ranks that
share a batch skip the same layers. A training loop says which step it is by `draw(step)`; without
one, forwards in training are counted. Parameters of a skipped layer get gradients of 0, never None:
data parallelism waits for all of them. Where Python cannot decide, inside a compiled whole or a
recorded graph, the layer runs and a coin on the device chooses: `draw` changes it between replays.

Paper: Fan et al. 2019, https://arxiv.org/abs/1909.11556
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.errors import WeftError
from weft.registry import Registry

DEPTHS = Registry("depth rule")
DepthConfig = Annotated[Any, DEPTHS]  # a config, a table or a spec string

# through(x (b, n, c), layer) -> (b, n, c)
Through = Callable[[Tensor, int], Tensor]


class PassageInputs(NamedTuple):
    """What a rule gets besides x and the layers."""

    valid: Tensor | None = None  # (b, n), as the layers get it
    context: Tensor | None = None  # as the layers get it
    position: int | None = None  # tokens that were decoded before; None: this is a forward
    seen: list[Tensor] | None = None  # takes what leaves each layer


class Passage(nn.Module):
    """Every layer once, and what the other rules change of it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, through: Through, given: PassageInputs) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        for layer in range(self.layers):
            x = self.pass_layer(x, through, layer, given.context)
            if given.seen is not None:
                given.seen.append(x)
        return x

    def pass_layer(self, x: Tensor, through: Through, layer: int, context: Tensor | None) -> Tensor:
        """One layer."""
        return through(x, layer)


@DEPTHS.register("plain")
@dataclass(frozen=True, kw_only=True)
class Every:
    """Every layer, once."""

    repeats = 1

    def build(self, dim: int, layers: list[list[nn.Module]], causal: bool) -> Passage:
        return Passage(len(layers))


@DEPTHS.register("layer_drop")
@dataclass(frozen=True, kw_only=True)
class LayerDrop:
    """In training each layer is skipped with probability `rate`; in evaluation all run."""

    rate: float = 0.2  # probability; 0.5 if half of the layers shall be left out later
    seed: int = 0

    repeats = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate < 1.0:
            raise WeftError(f"rate is a probability in [0, 1); got rate={self.rate}")

    def kept(self, layers: int, step: int, stack: str) -> list[bool]:
        """Which layers run at a step of training; stacks of one model differ by name."""
        coins = random.Random(f"layer drop {self.seed} {stack} {step}")
        return [coins.random() >= self.rate for _ in range(layers)]

    def build(self, dim: int, layers: list[list[nn.Module]], causal: bool) -> LayerDropPassage:
        return LayerDropPassage(self, layers, causal)


class LayerDropPassage(Passage):
    """Each layer once, or not at all."""

    coins: Tensor

    def __init__(self, config: LayerDrop, layers: list[list[nn.Module]], causal: bool) -> None:
        super().__init__(len(layers))
        self.config, self.stack = config, "decoder" if causal else "encoder"
        # In a list of lists, modules are not registered a second time.
        self.parts = layers
        self.register_buffer("coins", torch.ones(len(layers), dtype=torch.bool), persistent=False)
        self.counted, self.drawn = 0, False
        self.kept = [True] * len(layers)

    def draw(self, step: int) -> None:
        """Toss the coins of a step of training."""
        self.drawn = True
        self._toss(step)

    def _toss(self, step: int) -> None:
        self.kept = self.config.kept(self.layers, step, self.stack)
        self.coins.copy_(torch.tensor(self.kept))

    def forward(self, x: Tensor, through: Through, given: PassageInputs) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        if self.training and not self.drawn and not _fixed(x):
            self._toss(self.counted)
            self.counted += 1
        return super().forward(x, through, given)

    def pass_layer(self, x: Tensor, through: Through, layer: int, context: Tensor | None) -> Tensor:
        """One layer, if its coin says so."""
        if not self.training:
            return through(x, layer)
        if _fixed(x):
            coin = (
                self.coins[layer]
                if self.drawn
                else torch.rand((), device=x.device) >= (self.config.rate)
            )
            return torch.where(coin, through(x, layer), x)
        if self.kept[layer]:
            return through(x, layer)
        mine: list[Tensor] = [
            p for part in self.parts[layer] for p in part.parameters() if p.requires_grad
        ]
        if context is not None and context.requires_grad:
            mine.append(context)  # which makes zeros for the encoder, if no layer reads it
        return _Unused.apply(x, *mine) if torch.is_grad_enabled() else x


def _fixed(x: Tensor) -> bool:
    """Whether Python runs now, but not when this computation is repeated."""
    if torch.compiler.is_compiling():
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class _Unused(torch.autograd.Function):
    """x as it is; parameters, and the context, get gradients of 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *(torch.zeros_like(p) for p in ctx.saved_tensors)

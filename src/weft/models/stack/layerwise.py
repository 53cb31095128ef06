"""A stack layer by layer: what stops in the middle, reads the middle, or leaves layers out.

Layers are those of `models/stack/order.py`, counted from 1. `walk` gives the residual stream after
each of them, before the last norm.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.layers.marks import Marks
from weft.models.registry import TrunkModel
from weft.models.stack.order import split
from weft.models.stack.stack import Stack, StackModule
from weft.models.stack.sublayer import Sublayer
from weft.models.trunks.decoder import Decoder
from weft.models.trunks.encoder import Encoder, Trunk


def spans(order: str) -> list[range]:
    """The places of each layer's letters in an order: "sfsf" -> [0, 1], [2, 3]."""
    edges = [0, *accumulate(len(layer) for layer in split(order))]
    return [range(a, b) for a, b in pairwise(edges)]


def layers_of(stack: StackModule) -> list[list[Sublayer]]:
    """The sublayers of each layer."""
    running = stack.running
    return [[running[place] for place in layer] for layer in stack.layers]


def check_walkable(trunk: Any, *, cut: bool = False) -> None:
    """Refuse a trunk (its config) that is more than one sublayer after another.

    To be cut, it must have parameters of its own in each layer.
    """
    if type(trunk) not in (Encoder, Decoder):
        raise Unsupported(
            "only an Encoder or a Decoder can be left, or cut, between layers; "
            f"got {type(trunk).__name__}"
        )
    stack: Stack = trunk.stack
    if stack.depth.repeats > 1:
        raise Unsupported(f"layers that run again and again are not left; got depth={stack.depth}")
    if cut and stack.shared:
        raise Unsupported(
            f"layers that share their parameters cannot be separated; got shared={stack.shared}"
        )
    if set(stack.order) - set("sf"):
        raise Unsupported(
            "only orders of 's' and 'f' are walked layer by layer, none that reads a context; "
            f"got order {stack.order!r}"
        )
    if stack.recompute == "reversible":
        raise Unsupported(
            "the two streams of a reversible stack meet at its end only, so nothing can be read "
            "between layers; set recompute='nothing' or 'checkpoint'"
        )


def exits_after(after: tuple[int, ...] | None, layers: int) -> tuple[int, ...]:
    """The layers, from 1, that are followed by an exit; None: all. The last always is."""
    chosen = tuple(range(1, layers + 1)) if after is None else tuple(sorted({*after, layers}))
    if chosen[0] < 1 or chosen[-1] > layers:
        raise WeftError(f"exits come after layers 1 to {layers}; got after={after}")
    return chosen


def walk(trunk: Trunk, x: Tensor, valid: Tensor | None, marks: Marks | None = None) -> list[Tensor]:
    """The stream (b, g + n, c) after each layer, registers in front, before the last norm."""
    h, real = trunk.begin(x, valid)
    taps: list[Tensor] = []
    trunk.stack(h, valid=real, taps=taps, marks=marks)
    return taps[1:]


def rebuilt(model: TrunkModel, stack: Stack) -> TrunkModel:
    """A fresh model of the same kind, place, precision and mode, on another stack."""
    trunk = dataclasses.replace(model.config.trunk, stack=stack)
    tensor = next(model.parameters())
    fresh = dataclasses.replace(model.config, trunk=trunk).build()
    return fresh.to(tensor.device, tensor.dtype).train(model.training)

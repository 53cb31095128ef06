"""Layer pruning: a model with some of its layers, for good.

    "every other" at rate p: layers go whose number, from 1, is a multiple of ⌊1/p⌋

A model trained with LayerDrop at the same rate (`models/stack/depth.py`) has learned to do without
them; of any other the result is a start for training on, e.g. for distillation. The config
remembers the numbers that the mixers had (`Stack(layer_numbers=...)`), since some choose windows or
seeds by them.

Paper: Fan et al. 2019, section 3.2, https://arxiv.org/abs/1909.11556
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.models.exits.early_exit import EarlyExit
from weft.models.registry import TrunkModel
from weft.models.stack.layerwise import check_walkable, rebuilt, spans
from weft.models.stack.order import FEEDING, MIXING, count


def prune_layers(model: TrunkModel, keep: Iterable[int]) -> TrunkModel:
    """The model with these layers, from 1, in their order; no memory is shared with the old."""
    if isinstance(model.config, EarlyExit):
        raise Unsupported("exits belong to layers; leave layers out first, then train the exits")
    check_walkable(model.config.trunk, cut=True)
    stack, kept = model.config.trunk.stack, tuple(keep)
    layers = spans(stack.order)
    if not kept or list(kept) != sorted({*kept} & {*range(1, len(layers) + 1)}):
        raise WeftError(f"keep names layers 1 to {len(layers)}, rising; got {kept}")
    places = [place for layer in kept for place in layers[layer - 1]]
    smaller = rebuilt(model, _without(stack, places))
    moved = {f"trunk.stack.sublayers.{old}.": new for new, old in enumerate(places)}
    smaller.load_state_dict(dict(_renamed(model.state_dict(), moved)))
    return smaller


def every_other(layers: int, rate: float = 0.5) -> tuple[int, ...]:
    """The layers, from 1, that stay when a share `rate` is left out, evenly."""
    if not 0.0 < rate <= 0.5:
        raise WeftError(f"rate is in (0, 0.5]: every second layer or fewer; got {rate}")
    period = math.floor(1 / rate + 1e-9)
    return tuple(layer for layer in range(1, layers + 1) if layer % period)


def _without(stack: Any, places: list[int]) -> Any:
    """The config of a stack with the sublayers at these places."""

    def chosen(values: tuple[Any, ...], letters: str) -> tuple[Any, ...]:
        return tuple(
            values[count(stack.order[:i], letters)] for i in places if stack.order[i] in letters
        )

    changes: dict[str, Any] = {"order": "".join(stack.order[i] for i in places)}
    for name, letters in (("mixer", MIXING), ("feedforward", FEEDING), ("layer_heads", MIXING)):
        if isinstance(getattr(stack, name), tuple):
            changes[name] = chosen(getattr(stack, name), letters)
    numbers = stack.layer_numbers or tuple(range(len(stack.mixers)))
    return dataclasses.replace(stack, **changes, layer_numbers=chosen(numbers, MIXING))


def _renamed(state: dict[str, Tensor], moved: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Tensors under the names that they have once some sublayers are gone."""
    for name, tensor in state.items():
        if not name.startswith("trunk.stack.sublayers."):
            yield name, tensor
            continue
        prefix = ".".join(name.split(".")[:4]) + "."
        if prefix in moved:
            yield f"trunk.stack.sublayers.{moved[prefix]}.{name.removeprefix(prefix)}", tensor

"""The sublayers of a stack, from its config: one letter after another, shared where it says so.

Sharing: L layers in g groups; layer i belongs to group ⌊i g / L⌋, and the layers of a group are the
same sublayers, norms included. They run as often as there are layers, and decoding keeps a state
for each run. g = 1 is ALBERT's, Lan et al. 2019, https://arxiv.org/abs/1909.11942
"""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.errors import WeftError
from weft.layers.norm import Norm
from weft.layers.projections.dense import DenseProjection
from weft.mixers import Frame, Mixer
from weft.models.stack.order import CROSSING, FEEDING, MIXING, count, split
from weft.models.stack.sublayer import (
    CrossSublayer,
    FeedForwardSublayer,
    ParallelSublayer,
    SelfSublayer,
    Side,
    Sublayer,
)
from weft.models.stack.weighted import WeightedHeads, WeightedSublayer

_NO_NORM = Norm(kind="none")


def build_sublayers(config: Any, frame: Frame, causal: bool) -> list[Sublayer]:
    """A sublayer for each letter of a stack's order; those that are shared occur several times."""
    built: list[Sublayer] = []
    first: dict[int, int] = {}
    parts = split(config.order)
    for number, layer in enumerate(parts):
        group = number * config.shared // len(parts) if config.shared else number
        start = first.setdefault(group, len(built))
        if start < len(built):
            built += built[start : start + len(layer)]
        else:
            for _ in layer:
                built.append(_sublayer(config, frame, causal, len(built)))
    return built


def check_shared(config: Any) -> None:
    """Layers that share their parameters have to be alike."""
    parts = split(config.order)
    if not 0 <= config.shared <= len(parts):
        raise WeftError(
            f"shared is a number of groups for {len(parts)} layers, 0: none is shared; "
            f"got shared={config.shared}"
        )
    if not config.norm.first and (config.shared or config.depth.repeats > 1):
        raise WeftError(
            "layers that share their parameters share their norms too, so the first has what the "
            f"others have; set Norm(first=True), got shared={config.shared}, depth={config.depth}"
        )
    if config.shared and config.depth.repeats > 1:
        raise WeftError(
            f"depth={config.depth} shares its block already; set shared=0, got {config.shared}"
        )
    if not config.shared:
        return
    settings, place = [], 0
    for layer in parts:
        settings.append([_settings(config, place + i) for i in range(len(layer))])
        place += len(layer)
    groups = [i * config.shared // len(parts) for i in range(len(parts))]
    for a, b in zip(range(len(parts)), range(1, len(parts)), strict=False):
        if groups[a] == groups[b] and settings[a] != settings[b]:
            raise WeftError(
                f"layers {a} and {b} share their parameters (shared={config.shared}), so they have "
                f"one order and one setting; got {settings[a]} and {settings[b]}"
            )


def _settings(config: Any, place: int) -> list[Any]:
    """What the sublayer at this place of the order is made from."""
    letter, before = config.order[place], config.order[:place]
    found: list[Any] = [letter]
    if letter in MIXING:
        layer = count(before, MIXING)
        found += [config.mixers[layer], config.layer_heads and config.layer_heads[layer]]
        found.append(config.layer_positions and config.layer_positions[layer])
    if letter in FEEDING:
        found.append(config.feedforwards[count(before, FEEDING)])
    return found


def _sublayer(config: Any, frame: Frame, causal: bool, place: int) -> Sublayer:
    letter, before = config.order[place], config.order[:place]
    norm = config.norm if place or config.norm.first else _NO_NORM
    around = (norm, frame.dim, config.dropout, config.residual)
    if letter == "f":
        return FeedForwardSublayer(_feedforward(config, frame, before), *around)
    if letter == "c":
        return CrossSublayer(_cross(config, frame, before), *around)
    layer = count(before, MIXING)
    own = dataclasses.replace(config.framed(frame, layer), causal=causal)
    mixer: Mixer = config.mixers[layer].build(own)
    if letter == "p":
        return ParallelSublayer(Side(mixer, _cross(config, frame, before)), *around)
    if letter == "w":
        heads = WeightedHeads(mixer, _feedforward(config, frame, before))
        return WeightedSublayer(heads, *around)
    return SelfSublayer(mixer, *around)


def _feedforward(config: Any, frame: Frame, before: str) -> Any:
    feedforward = config.feedforwards[count(before, FEEDING)]
    return feedforward.build(frame.dim, config.dropout, frame.bias)


def _cross(config: Any, frame: Frame, before: str) -> Mixer:
    # Neither distances between two sequences nor neighbours mean anything, so positions inside
    # attention stay out, and projections are dense.
    dense = isinstance(frame.projection, DenseProjection)
    projection = dataclasses.replace(frame.projection, out=True) if dense else DenseProjection()
    own = {"layer": count(before, CROSSING), "positions": None, "projection": projection}
    return config.cross.build(dataclasses.replace(frame, **own))


def tie(mixers: list[Mixer]) -> None:
    """Let configs that share parameters across layers do so: `tie(mixers)` of each config class."""
    for kind in dict.fromkeys(type(mixer.config) for mixer in mixers):
        if hasattr(kind, "tie"):
            kind.tie([mixer for mixer in mixers if type(mixer.config) is kind])


def share_positions(mixers: list[Mixer]) -> None:
    """Give layers whose positions say so (`across_layers`) the module of the first of them."""
    first: dict[Any, Any] = {}
    for mixer in mixers:
        config = mixer.frame.positions
        if getattr(config, "across_layers", False) and hasattr(mixer, "positions"):
            mixer.positions = first.setdefault(config, mixer.positions)

"""Head pruning: heads that matter least are taken out, and matrices really shrink.

    a gate ξ multiplies each head's output; importance I_h = E_x |∂L(x)/∂ξ_h| at ξ = 1, divided by
    its l2 norm over the heads of its layer. The lowest tenth of all heads goes, importance is
    measured again, and so on. No training in between.

A head that goes takes its rows of W_q, W_k, W_v and its columns of W_o with it, so what is left
computes what the gated model computed, faster. Where query heads share a key head, all heads of a
group go together: a *unit* is a key head with the query heads that read it. Every layer keeps one
unit at least. The result is a model with a config of its own (`Stack(layer_heads=...)`): it is
saved, loaded and trained on like any other.

Paper: Michel et al. 2019, section 4.1, https://arxiv.org/abs/1905.10650
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.layers.projections.dense import Projections
from weft.mixers import Mixer
from weft.mixers.base import AttentionMixer
from weft.models.registry import TrunkModel
from weft.models.stack.layerwise import check_walkable, rebuilt

# loss(model, batch) -> (), summed over the rows of the batch
LossOf = Callable[[nn.Module, Any], Tensor]
_PARAMETERS = {
    f"project.to_{name}.{kind}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")
}
_OF_HEADS = {"positions.table"}  # (buckets, h)


def prune_heads(
    model: TrunkModel, batches: Sequence[Any], loss: LossOf, *, share: float, step: float = 0.1
) -> TrunkModel:
    """The model without `share` of its units, the least important; `step` of them at a time."""
    if not 0.0 <= share < 1.0 or not 0.0 < step <= 1.0:
        raise WeftError(f"share is in [0, 1), step in (0, 1]; got share={share}, step={step}")
    total = sum(_units(mixer) for mixer in _mixers(model))
    left = math.floor(share * total + 1e-9)
    while left:
        importance = head_importance(model, batches, loss)
        now = min(left, max(1, math.floor(step * total + 1e-9)))
        keep = _best(importance, now)
        if sum(map(len, keep)) == sum(map(len, importance)):
            break  # each layer has one unit left
        model = keep_heads(model, keep)
        left -= now
    return model


def head_importance(model: TrunkModel, batches: Iterable[Any], loss: LossOf) -> list[Tensor]:
    """I of each mixer's units, normalised within the mixer: one (units,) for each."""
    mixers = _mixers(model)
    sums = [torch.zeros(_units(mixer), dtype=torch.float64) for mixer in mixers]
    training = model.training
    model.eval()
    try:
        for batch in batches:
            with gated(mixers) as gates, torch.enable_grad():
                total = loss(model, batch)
            slopes = torch.autograd.grad(total, [gate[0] for gate in gates])
            for sum_, slope in zip(sums, slopes, strict=True):
                sum_ += slope.double().abs().sum(0).cpu()
    finally:
        model.train(training)
    return [each / each.norm().clamp(min=1e-30) for each in sums]


@contextmanager
def gated(mixers: Sequence[AttentionMixer]) -> Iterator[list[list[Tensor]]]:
    """Let gates of 1, one for each row and unit, multiply what heads give to the output map.

    Each mixer's list holds its gates (b, units) after a forward.
    """
    gates: list[list[Tensor]] = [[] for _ in mixers]

    def gate(own: list[Tensor], units: int) -> Callable[..., Tensor]:
        def multiply(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            (y,) = inputs  # (b, n, h·d)
            if not own:
                own.append(y.new_ones(len(y), units, requires_grad=True))
            return y * own[0].repeat_interleave(y.shape[-1] // units, dim=1)[:, None]

        return multiply

    handles = [
        mixer.project.to_out.register_forward_pre_hook(gate(own, _units(mixer)))
        for mixer, own in zip(mixers, gates, strict=True)
    ]
    try:
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def keep_heads(model: TrunkModel, keep: Sequence[Sequence[int]]) -> TrunkModel:
    """A model with these units, from 0, of each mixer; it shares no memory with the old one."""
    mixers = _mixers(model)
    if len(keep) != len(mixers):
        raise WeftError(f"keep has units for each of {len(mixers)} mixers; got {len(keep)}")
    for units, mixer in zip(keep, mixers, strict=True):
        known = range(_units(mixer))
        if not units or len(set(units)) != len(units) or not set(units) <= set(known):
            raise WeftError(f"a layer keeps some of its units 0 to {known[-1]}; got {units}")
    group = mixers[0].frame.heads // mixers[0].frame.kv_heads
    heads = tuple(group * len(units) for units in keep)
    smaller = rebuilt(model, dataclasses.replace(model.config.trunk.stack, layer_heads=heads))
    state, names = model.state_dict(), {module: name for name, module in model.named_modules()}
    for mixer, units in zip(mixers, keep, strict=True):
        _slice(state, names[mixer], mixer, sorted(units))
    smaller.load_state_dict(state)
    return smaller


def _mixers(model: TrunkModel) -> list[AttentionMixer]:
    check_walkable(model.config.trunk, cut=True)
    mixers = model.trunk.stack.mixers
    for mixer in mixers:
        check_prunable(mixer)
    return mixers


def check_prunable(mixer: Mixer) -> None:
    """Refuse a mixer with more to its heads than projections, or heads that know their number."""
    name, known = mixer.config.name, _PARAMETERS | _OF_HEADS
    plain = (
        isinstance(mixer, AttentionMixer)
        and type(mixer.project) is Projections
        and all(type(each) is nn.Linear for each in mixer.project.children())
    )
    buffers = {key for key, _ in mixer.named_buffers() if not key.startswith("positions.")}
    extra = sorted({*mixer.state_dict(), *buffers} - known)
    if not plain or extra:
        raise Unsupported(
            f"heads can be taken out of attention with plain projections; {name} has "
            f"{', '.join(extra[:3]) or 'projections of its own'} besides"
        )
    fixed = getattr(getattr(mixer, "pattern", None), "per_head", False)
    assert isinstance(mixer, AttentionMixer)
    if getattr(mixer.frame.positions, "across_layers", False):
        raise Unsupported(
            "the layers share one table of positions, with a column for each head, so heads cannot "
            "be taken out of some of them; use t5(across_layers=false)"
        )
    slopes = mixer.positions.biased and not hasattr(mixer.positions, "table")
    if fixed or slopes:
        raise Unsupported(
            f"each head of {name} has {'slopes' if slopes else 'a pattern'} by its number, so "
            "taking one out would change the others; use Rope, T5Bias or positions of the embedding"
        )


def _units(mixer: AttentionMixer) -> int:
    return mixer.frame.kv_heads


def _best(importance: list[Tensor], remove: int) -> list[list[int]]:
    """The units of each mixer that stay when the `remove` lowest go, the best of each excepted."""
    best = [int(each.argmax()) for each in importance]
    ranked = sorted(
        (float(value), layer, unit)
        for layer, each in enumerate(importance)
        for unit, value in enumerate(each)
        if unit != best[layer]
    )
    gone = {(layer, unit) for _, layer, unit in ranked[:remove]}
    return [
        [unit for unit in range(len(each)) if (layer, unit) not in gone]
        for layer, each in enumerate(importance)
    ]


def _slice(state: dict[str, Tensor], name: str, mixer: Mixer, units: list[int]) -> None:
    """Cut a mixer's tensors in a state dict down to these units."""
    frame, group = mixer.frame, mixer.frame.heads // mixer.frame.kv_heads
    heads = torch.tensor([unit * group + one for unit in units for one in range(group)])
    wide = torch.arange(frame.head_dim)
    of_heads = (heads[:, None] * frame.head_dim + wide).flatten()  # (h'·d,)
    of_units = (torch.tensor(units)[:, None] * frame.head_dim + wide).flatten()
    cuts = {"project.to_q": (0, of_heads), "project.to_k": (0, of_units)}
    cuts |= {"project.to_v": (0, of_units), "project.to_out": (1, of_heads)}
    cuts |= {"positions": (1, heads)}
    for key in mixer.state_dict():
        axis, index = cuts[key.rpartition(".")[0]]
        tensor = state[f"{name}.{key}"]
        if axis < tensor.dim():
            state[f"{name}.{key}"] = tensor.index_select(axis, index.to(tensor.device))

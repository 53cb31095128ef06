"""Rotary bases by layer: layers that read farther than a model was trained for get a larger one.

    θ_t = base^(−2t/d),   base' = factor · base

A layer that reads within the trained distances keeps its base, so nothing changes for it. The
factor slows all rotations, as in "code Llama" (Rozière et al. 2023); ours differs in being set for
some layers alone.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from weft.errors import Unsupported, WeftError
from weft.interop.hf.plug.near_sinks import SinkSplit, set_frequencies, turned_back
from weft.patterns import Full

_HOOKS = "_weft_rotary_hooks"  # of the body: what swaps the tables of some layers


class RotaryTables(tuple[Tensor, Tensor]):
    """Cosines and sines of the layers with the model's base; `far`, those of the others."""

    far: tuple[Tensor, Tensor]


class TwoRotaries(nn.Module):
    """A model's rotary module, and the same with another base."""

    def __init__(self, near: nn.Module, far: nn.Module) -> None:
        super().__init__()
        self.near, self.far = near, far

    def forward(self, x: Tensor, position_ids: Tensor, **given: Any) -> RotaryTables:
        """The tables of both, as one pair that carries the other."""
        made = RotaryTables(self.near(x, position_ids=position_ids, **given))
        made.far = self.far(x, position_ids=position_ids, **given)
        return made


def has_rotary(model: PreTrainedModel) -> bool:
    """Whether positions are rotations of one table for all layers."""
    return isinstance(getattr(model.base_model, "rotary_emb", None), nn.Module)


def set_rotary(model: PreTrainedModel, factor: float, layers: frozenset[int]) -> None:
    """Multiply the base of these layers; factor 1 or no layers: the model's own again."""
    if factor < 1:
        raise WeftError(f"a rotary base is multiplied by 1 or more; got {factor}")
    body: Any = model.base_model
    _undo(body)
    if factor == 1 or not layers:
        return
    near = body.rotary_emb
    body.rotary_emb = TwoRotaries(near, _scaled(near, factor))
    attention = [_attention(body.layers[layer]) for layer in sorted(layers)]
    hooks = [part.register_forward_pre_hook(_take_far, with_kwargs=True) for part in attention]
    body.__dict__[_HOOKS] = hooks


def keep_sinks_near(model: PreTrainedModel) -> None:
    """First tokens of patterns at the nearest position, in every layer: see `plug.near_sinks`."""
    body: Any = model.base_model
    rotary = body.rotary_emb
    for layer in body.layers:
        part = _attention(layer)
        far = isinstance(rotary, TwoRotaries) and part._forward_pre_hooks_with_kwargs
        own: Any = (
            (rotary.far if far else rotary.near) if isinstance(rotary, TwoRotaries) else rotary
        )
        _check_turns(part, own)
        set_frequencies(part, own.inv_freq)


def _check_turns(part: nn.Module, rotary: Any) -> None:
    """Refuse a model whose rotations are not those of halves: turning back would be wrong."""
    apply = getattr(sys.modules[type(part).__module__], "apply_rotary_pos_emb", None)
    if apply is None or not isinstance(getattr(rotary, "inv_freq", None), Tensor):
        raise Unsupported(
            f"{type(part).__name__} rotates in a way that is not known, so its first tokens cannot "
            "be kept near; leave keys(first=...) out of the pattern"
        )
    split = SinkSplit(Full(), 1, 3)
    device, width = rotary.inv_freq.device, 2 * len(rotary.inv_freq)
    x = torch.linspace(-1, 1, 8 * width, device=device).view(1, 1, 8, width)
    place = torch.arange(8, device=device)[None]
    there, near = (apply(x, x, *rotary(x, p))[0] for p in (place, place.clamp(max=3)))
    turned = turned_back(there / rotary.attention_scaling, place, split, rotary.inv_freq)
    if not torch.allclose(turned, near / rotary.attention_scaling, atol=1e-4):
        raise Unsupported(
            f"{type(part).__name__} does not rotate halves of a head, so its first tokens cannot "
            "be kept near; leave keys(first=...) out of the pattern"
        )


def _undo(body: Any) -> None:
    for hook in body.__dict__.pop(_HOOKS, ()):
        hook.remove()
    for layer in body.layers:
        set_frequencies(_attention(layer), None)
    if isinstance(getattr(body, "rotary_emb", None), TwoRotaries):
        body.rotary_emb = body.rotary_emb.near


def _scaled(near: Any, factor: float) -> nn.Module:
    config = copy.deepcopy(near.config)
    given = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" not in given:
        raise Unsupported(
            f"{type(near).__name__} has several rotary bases already, one for each kind of layer; "
            "scaling them is not supported: choose patterns within the trained length"
        )
    config.rope_parameters = {**given, "rope_theta": given["rope_theta"] * factor}
    made = type(near)(config=config)
    return made.to(near.inv_freq.device)


def _attention(layer: Any) -> nn.Module:
    found = getattr(layer, "self_attn", None)
    if found is None:
        raise Unsupported(
            f"{type(layer).__name__} has no self_attn, so its rotary base cannot be set by layer"
        )
    return found


def _take_far(module: nn.Module, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before an attention module runs: its tables are those of the larger base."""
    tables = named.get("position_embeddings")
    if not isinstance(tables, RotaryTables):
        raise Unsupported(
            f"{type(module).__name__} does not get its rotary tables by name, so its base cannot "
            "be set by layer; choose patterns within the trained length"
        )
    return given, {**named, "position_embeddings": tables.far}

"""What an attention module is: its layer, its side, and whether it reads another text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from weft.interop.hf.plug.layers import SIDES

_NUMBER = re.compile(r"\.(\d+)(?:\.|$)")
_CROSS = re.compile(r"cross|encdec|encoder_attn", re.IGNORECASE)


@dataclass(frozen=True)
class AttentionPlace:
    """Where in its model an attention module is."""

    side: str | None  # of an encoder-decoder
    layer: int | None
    cross: bool  # reads another sequence


_PLACES: WeakKeyDictionary[nn.Module, AttentionPlace] = WeakKeyDictionary()


def place_of(module: nn.Module) -> AttentionPlace:
    """The place of a module, as `note_places` found it, or from the module alone."""
    found = _PLACES.get(module)
    if found is None:
        found = _PLACES[module] = AttentionPlace(
            side=_side(module), layer=getattr(module, "layer_idx", None), cross=_is_cross(module)
        )
    return found


def note_places(model: nn.Module) -> int:
    """Number the layers of a model by their place in it; returns how many there are."""
    two_sided = bool(getattr(model.config, "is_encoder_decoder", False))
    count = 0
    for name, module in model.named_modules():
        if "Attention" not in type(module).__name__:
            continue
        number = _NUMBER.search(f".{name}")
        layer = int(number[1]) if number else getattr(module, "layer_idx", None)
        side = next((part for part in name.split(".") if part in SIDES), None)
        cross = _is_cross(module) or bool(_CROSS.search(name))
        _PLACES[module] = AttentionPlace(side if two_sided else None, layer, cross)
        count = max(count, 0 if layer is None else layer + 1)
    return count


def _side(module: Any) -> str | None:
    config = getattr(module, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return None
    return "decoder" if getattr(module, "is_decoder", False) else "encoder"


def _is_cross(module: Any) -> bool:
    """Modules say it by a flag, by their class, or as decoder parts that are not causal."""
    if getattr(module, "is_cross_attention", False) or _CROSS.search(type(module).__name__):
        return True
    causal = getattr(module, "is_causal", True)
    return bool(getattr(module, "is_decoder", False)) and not causal

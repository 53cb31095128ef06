"""`accelerate`: a Transformers model whose expensive parts weft computes, its weights untouched.

    accelerate(model)               the families of `families()`
    accelerate(model, undo=True)    as it was

Each module keeps its parameters, their names and its place; its `forward` is replaced by weft's
over the same matrices. Outputs and gradients are those of Transformers to rounding, random blocks
and hashes are its own draws. Attention maps are not returned.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from weft.errors import Unsupported
from weft.interop.hf.twins.lean import Twin
from weft.interop.hf.twins.registry import FAMILIES, Pass, family_of

_FILES = (
    "longformer",
    "bigbird",
    "nystromformer",
    "fnet",
    "swin",
    "imagegpt",
    "switch_transformers",
    "funnel",
    "reformer",
)


def families() -> dict[str, Any]:
    """The families that have a twin, by their folder in Transformers."""
    for name in _FILES:
        import_module(f"weft.interop.hf.twins.{name}")
    return FAMILIES


def accelerate(model: nn.Module, *, undo: bool = False) -> nn.Module:
    """Replace what is expensive in a Transformers model by weft's, or put its own back."""
    families()
    found: list[tuple[Any, Any]] = []
    hits = 0
    for part in model.modules():
        family, name = family_of(part), type(part).__name__
        if family is None:
            continue
        make = family.attention.get(name)
        hits += make is not None
        make = make or family.around.get(name)
        if make is not None:
            found.append((part, make))
    if not hits:
        raise Unsupported(_refusal(model))
    shared = Pass()
    for part, make in found:
        for name in [key for key, value in vars(part).items() if isinstance(value, Twin)]:
            del vars(part)[name]
        if not undo:
            # Not registered in the module: its parameters keep their names.
            vars(part).update(make(part, shared))
    return model


def _refusal(model: nn.Module) -> str:
    known = ", ".join(name for each in FAMILIES.values() for name in each.models)
    return (
        f"weft has no twin for the attention of {type(model).__name__}; it has for {known}. "
        "weft.interop.hf.use(model, pattern) sets patterns instead"
    )

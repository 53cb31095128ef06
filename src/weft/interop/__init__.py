"""Other libraries' models with weft's attention, and weft's models in other libraries.

accelerate(model)    a Transformers model whose attention weft computes, its weights untouched
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`accelerate` and `weft.interop.hf`, loaded when first asked for."""
    if name == "hf":
        return import_module("weft.interop.hf")
    if name == "accelerate":
        return import_module("weft.interop.hf.twins.accelerate").accelerate
    raise AttributeError(f"module 'weft.interop' has no attribute {name!r}", name=name)

"""Other libraries' models with weft's attention, and weft's models in other libraries."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`weft.interop.hf`, loaded when it is first asked for: it needs Transformers."""
    if name == "hf":
        return import_module("weft.interop.hf")
    raise AttributeError(f"module 'weft.interop' has no attribute {name!r}", name=name)

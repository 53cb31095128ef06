"""Native decoding: one call per token into a small C++ library, built at first use."""

from weft.native.library import (
    available,
    bandwidth,
    level,
    set_level,
    set_threads,
    threads,
    waits,
)
from weft.native.model import NativeModel, compile, export, load
from weft.native.precision import WeightPrecision
from weft.native.state import NativeState, gather

__all__ = [
    "NativeModel",
    "NativeState",
    "WeightPrecision",
    "available",
    "bandwidth",
    "compile",
    "export",
    "gather",
    "level",
    "load",
    "set_level",
    "set_threads",
    "threads",
    "waits",
]

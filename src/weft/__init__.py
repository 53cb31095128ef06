"""weft: every efficient-transformer idea behind one interface.

>>> import weft
>>> str(weft.Sliding(256) | weft.Strided(64))
'sliding(window=256) | strided(stride=64)'
>>> weft.mixer("longformer(window=512)")
Longformer(window=512, dilation=1, global_first=1, global_projections=True)

Public names are found when they are asked for, so `import weft` alone loads no torch. Where a
pattern and a mixer share a name the pattern is meant: `weft.Full` reads every key, and
`weft.mixers.Full` is the layer.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"

# Searched in this order; None stands for the module's own __all__.
_HOMES: dict[str, tuple[str, ...] | None] = {
    "weft.errors": ("Unsupported", "WeftError"),
    "weft.patterns": None,
    "weft.kernels.attend": ("Plan", "Request", "attend", "plan"),
    "weft.layers.positions": ("Alibi", "Rope", "T5Bias"),
    "weft.mixers": None,
    "weft.models": None,
}


def mixer(spec: Any) -> Any:
    """The mixer config that a string such as `longformer(window=512)` describes."""
    from weft.errors import WeftError
    from weft.mixers import MIXERS

    config = MIXERS.parse(spec) if isinstance(spec, str) else spec
    if not hasattr(config, "build"):
        raise WeftError(f"a mixer spec reads like `longformer(window=512)`; got {spec!r}")
    return config


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if not name.startswith("_"):
        # A submodule comes first: importing it anywhere would set this very attribute.
        if find_spec(f"weft.{name}") is not None:
            return import_module(f"weft.{name}")
        for home, names in _HOMES.items():
            if (names is None or name in names) and name in _public(home):
                value = globals()[name] = getattr(import_module(home), name)
                return value
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({"__version__", "mixer"}.union(*map(_public, _HOMES)))


def _public(home: str) -> tuple[str, ...]:
    return _HOMES[home] or tuple(import_module(home).__all__)

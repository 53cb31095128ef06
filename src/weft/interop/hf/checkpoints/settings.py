"""What many readers ask of a Transformers config: activations, fixed settings, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.errors import Unsupported
from weft.layers.positions import Rope, RopeScaling

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "squared_relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
    "elu": "elu",
    "selu": "selu",
    "sigmoid": "sigmoid",
}
_GATES = {"gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "silu": "swiglu"}


def activation(name: str) -> str:
    """weft's name of an activation of Transformers."""
    if name not in _ACTIVATIONS:
        raise Unsupported(f"no activation {name!r} in weft; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def gate(name: str) -> str:
    """weft's name of a gate whose first half has this activation."""
    if (known := activation(name)) not in _GATES:
        raise Unsupported(f"no gate with the activation {name!r} in weft; known: {list(_GATES)}")
    return _GATES[known]


def refuse_unless(c: Any, **wanted: Any) -> None:
    """Raise where a setting of the checkpoint has a value that no weft model has."""
    for name, value in wanted.items():
        allowed = value if isinstance(value, tuple) else (value,)
        found = getattr(c, name, None)
        if found is not None and found not in allowed:
            raise Unsupported(
                f"{c.model_type} checkpoints are read with {name}="
                f"{' or '.join(map(repr, allowed))}; this one has {name}={found!r}"
            )


def by_layer_type(c: Any, known: Mapping[str, Any]) -> tuple[Any, ...]:
    """The mixer of each layer, by the type that the config gives it."""
    if unknown := sorted(set(c.layer_types) - set(known)):
        raise Unsupported(f"layers of type {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(known[each] for each in c.layer_types)


def rope(c: Any, layer_type: str | None = None) -> Rope:
    """The rotary positions of a decoder, of one type of its layers where types differ."""
    told = getattr(c, "rope_parameters", None) or {}
    if layer_type is not None and layer_type in told:
        told = told[layer_type]
    base = told.get("rope_theta") or getattr(c, "rope_theta", 10_000.0)
    share = told.get("partial_rotary_factor", getattr(c, "partial_rotary_factor", None) or 1.0)
    return Rope(base=float(base), rotated=float(share), scaling=_scaling(told, c))


def _scaling(told: dict[str, Any], c: Any) -> RopeScaling | None:
    kind = told.get("rope_type", told.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=told["factor"])
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=told["factor"],
            low=told["low_freq_factor"],
            high=told["high_freq_factor"],
            original=told["original_max_position_embeddings"],
        )
    raise Unsupported(
        f"rotary scaling of type {kind!r}; {c.model_type} is read with linear, llama3"
    )

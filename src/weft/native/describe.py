"""From a torch model to a plan: which parameters fill which slots.

What the native library does not support is refused here, with the name of the setting: a config is
accepted only where every setting that is not handled has its default.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from weft.errors import Unsupported
from weft.feedforward.activations import GATES
from weft.feedforward.dense import DenseFeedForward
from weft.feedforward.sparse import SparseFeedForward
from weft.feedforward.with_sru import Recurrence, WithSRUFeedForward
from weft.layers.norm import Norm
from weft.layers.outputs.linear import LinearOutput
from weft.layers.outputs.sparse import SparseOutput
from weft.layers.positions import PositionScheme, Rotary
from weft.mixers.full import FullAttention
from weft.mixers.sliding_window import SlidingWindow
from weft.models.heads.language_model import LanguageModelModule
from weft.models.trunks.decoder import DecoderModule
from weft.native.plan import ATTENTION, FEEDFORWARD, NativePlan, NativeSublayer
from weft.native.precision import DTYPES, WeightPrecision
from weft.native.projections import project

_ACTIVATIONS = (
    *("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "linear", "squared_relu", "elu", "selu"),
    "softplus",
)
_GATES = {
    "glu": "sigmoid",
    "geglu": "gelu",
    "reglu": "relu",
    "swiglu": "silu",
    "liglu": "linear",
}


def describe(model: nn.Module, precision: WeightPrecision) -> NativePlan:
    """The plan of a causal language model; `Unsupported` where the library lacks a part."""
    if type(model) is not LanguageModelModule or type(model.trunk) is not DecoderModule:
        raise Unsupported(
            "native decoding takes a language model on a Decoder; "
            f"got {type(getattr(model, 'config', model)).__name__}"
        )
    plan = NativePlan(model, precision)
    trunk, stack = model.trunk, model.trunk.stack
    only(
        stack.config,
        "frame order mixer feedforward norm recompute shared heads numbers dropout depth",
    )
    if stack.config.depth.name not in ("plain", "layer_drop"):  # which drops none in decoding
        raise Unsupported(f"native decoding runs every layer once; got {stack.config.depth}")
    only(model.config, "trunk tied output")
    norm: Norm = stack.config.norm
    if norm.place == "both" or norm.on_embedding != (norm.place == "post") or not norm.first:
        raise Unsupported(f"native decoding has norms before or after sublayers; got {norm}")
    if norm.kind not in ("layer", "rms"):
        raise Unsupported(f"native decoding needs norm='layer' or 'rms'; got {norm.kind!r}")
    plan.settings |= {
        "dim": trunk.dim,
        "vocab": trunk.config.embedding.vocab,
        "rms": int(norm.kind == "rms"),
        "post": int(norm.place == "post"),
        "reversible": int(stack.config.recompute == "reversible"),
        "eps": norm.eps,
        "cache": DTYPES[precision.cache],
    }
    _embedding(plan, trunk)
    for number, sublayer in enumerate(stack.running):
        plan.parts.append(_sublayer(plan, sublayer, f"{number}"))
    if norm.place == "pre":
        plan.ends |= _norm(plan, "last", stack.norm)
    else:
        plan.ends |= {f"enter_{k}": v for k, v in _norm(plan, "enter", trunk.norm).items()}
    _output(plan, model)
    return plan


def only(config: Any, handled: str) -> None:
    """Raise for a setting that is not handled and not its default."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        plain = value == default or getattr(value, "name", None) == default
        if field.name not in handled.split() and not plain:
            raise Unsupported(
                f"native decoding supports {type(config).__name__} without {field.name}; got "
                f"{field.name}={value!r}; decode with the torch model"
            )


def _embedding(plan: NativePlan, trunk: DecoderModule) -> None:
    only(trunk.config.embedding, "vocab positions shrink")
    kinds = ("none", "sinusoidal", "learned")
    plan.settings["positions"] = kinds.index(trunk.config.embedding.positions)
    plan.settings["limit"] = trunk.embedding.length or 0
    plan.ends["table"] = plan.matrix("embedding", [trunk.embedding.table])
    if trunk.config.embedding.positions == "learned":
        plan.ends["places"] = plan.matrix("positions", [trunk.embedding.positions], exact=True)


def _norm(plan: NativePlan, name: str, norm: Any) -> dict[str, int]:
    shift = getattr(norm, "bias", None)
    return plan.vector(f"{name}.gain", norm.weight) | plan.vector(f"{name}.shift", shift)


def _sublayer(plan: NativePlan, sublayer: Any, name: str) -> NativeSublayer:
    if sublayer.letter not in ("s", "f"):
        raise Unsupported(f"native decoding has no sublayer {sublayer.letter!r}; 's' and 'f' only")
    part = NativeSublayer(ATTENTION if sublayer.letter == "s" else FEEDFORWARD)
    if sublayer.letter == "s":
        _attention(plan, part, sublayer.body, f"{name}.attention")
    else:
        _feedforward(plan, part, sublayer.body, f"{name}.feedforward")
    part.tensors |= _norm(plan, name, sublayer.norm)
    return part


def _feedforward(plan: NativePlan, part: NativeSublayer, body: nn.Module, name: str) -> None:
    if type(body) is WithSRUFeedForward:
        _recurrence(plan, part, body.recurrence, name)
        body = body.inner
    if type(body) is DenseFeedForward:
        _dense(plan, part, body, name)
    elif type(body) is SparseFeedForward:
        _sparse(plan, part, body, name)
    else:
        raise Unsupported(
            "native decoding has the feed-forwards dense, sparse and with_sru; "
            f"got {type(body.config).__name__}"
        )


def _recurrence(plan: NativePlan, part: NativeSublayer, body: Recurrence, name: str) -> None:
    part.numbers["sru"] = body.to_narrow.out_features
    plan.settings["sru_scale"] = 3**0.5
    maps = {"sru_in": body.to_narrow, "sru_gates": body.to_gates, "sru_out": body.to_out}
    for slot, linear in maps.items():
        part.tensors[slot] = plan.matrix(f"{name}.{slot}", [linear.weight])
        part.tensors |= plan.vector(f"{name}.{slot}_bias", linear.bias)
    norm = _norm(plan, f"{name}.sru", body.norm)
    part.tensors |= {f"sru_{slot}": number for slot, number in norm.items()}


def _attention(plan: NativePlan, part: NativeSublayer, mixer: Any, name: str) -> None:
    config, frame = mixer.config, mixer.frame
    if not isinstance(config, FullAttention | SlidingWindow):
        raise Unsupported(
            f"native decoding has the mixers full and sliding_window; got {config.name}"
        )
    window = config.window if isinstance(config, SlidingWindow) else 0
    sinks = config.sinks if isinstance(config, SlidingWindow) else 0
    sizes = {"heads": frame.heads, "kv_heads": frame.kv_heads, "head_dim": frame.head_dim}
    part.numbers |= sizes | {"window": window, "sinks": sinks}
    rotation, base = 0, 1.0
    if type(mixer.positions) is Rotary:
        only(mixer.positions.config, "base interleaved")
        rotation = 2 if mixer.positions.config.interleaved else 1
        base = mixer.positions.config.base
    elif type(mixer.positions) is not PositionScheme:
        raise Unsupported(
            "native decoding has rotary positions in attention, or none; "
            f"got {type(frame.positions).__name__}"
        )
    plan.settings |= {"rotation": rotation, "rope_base": base}
    project(plan, part, mixer.project, frame, name)


def _dense(plan: NativePlan, part: NativeSublayer, body: DenseFeedForward, name: str) -> None:
    only(body.config, "activation expansion hidden biased")
    activation = body.config.activation
    first, second = body.to_hidden, None
    if _GATES.get(activation, activation) not in (*_ACTIVATIONS, "swish"):
        raise Unsupported(
            f"native decoding has no activation {activation!r}; decode with the torch model"
        )
    if activation in GATES:  # the library activates `hidden` and multiplies by `gate`
        first, second, activation = body.to_gate, body.to_hidden, _GATES[activation]
    activation = {"swish": "silu"}.get(activation, activation)
    part.numbers |= {
        "variant": int(second is not None),
        "activation": _ACTIVATIONS.index(activation),
        "block": 1,
    }
    for slot, linear in (("hidden", first), ("gate", second), ("out", body.to_out)):
        if linear is not None:
            part.tensors[slot] = plan.matrix(f"{name}.{slot}", [linear.weight])
            part.tensors |= plan.vector(f"{name}.{slot}_bias", linear.bias)


def _sparse(plan: NativePlan, part: NativeSublayer, body: SparseFeedForward, name: str) -> None:
    only(body.config, "block hidden rank temperature hard rescale")
    part.numbers |= {"variant": 2, "activation": 0, "block": body.config.block}
    rows = {
        "hidden": body.to_hidden,
        "out": body.to_out,
        "low": body.to_low,
        "logits": body.to_logits,
    }
    for slot, linear in rows.items():
        part.tensors[slot] = plan.matrix(f"{name}.{slot}", [linear.weight])
    part.tensors |= plan.vector(f"{name}.out_bias", body.to_out.bias)
    part.tensors |= plan.vector(f"{name}.logits_bias", body.to_logits.bias)


def _output(plan: NativePlan, model: LanguageModelModule) -> None:
    output = model.output
    if type(output) is LinearOutput:
        only(output.config, "chunk logit_scale")
        plan.settings |= {"modules": 0, "output_scale": output.scale or 1.0}
        plan.ends["output"] = plan.matrix("output", [output.weight])
    elif type(output) is SparseOutput:
        maps = output.map
        plan.settings |= {"modules": output.config.modules, "output_scale": 1.0}
        modules = plan.matrix("output.modules", [maps.scale], "columns", exact=True)
        plan.ends["output_modules"] = modules
        plan.ends["output"] = plan.matrix("output", [maps.weight], "panels")
        plan.ends |= plan.vector("output.output_bias", maps.bias)
    else:
        raise Unsupported(
            f"native decoding has the outputs linear and sparse; got {type(output.config).__name__}"
        )

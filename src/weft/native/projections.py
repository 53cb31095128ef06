"""Queries, keys and values of an attention sublayer: dense, multiplicative, convolutional."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from weft.errors import Unsupported
from weft.layers.projections.dense import Projections
from weft.layers.projections.multiplicative import (
    ConvolvedProjections,
    MultiplicativeProjections,
    Multiply,
)
from weft.native.plan import NativePlan, NativeSublayer

DENSE, CONVOLVED, FACTORED = 0, 1, 2


def project(plan: NativePlan, part: NativeSublayer, maps: nn.Module, frame: Any, name: str) -> None:
    """Add the tensors and settings of the projections to a sublayer's part."""
    part.numbers |= {"length": 1, "span": 1}
    if isinstance(maps, ConvolvedProjections):
        _convolved(plan, part, maps, frame, name)
    elif isinstance(maps, MultiplicativeProjections):
        part.numbers["projection"] = FACTORED
        for slot, each in (("", maps.to_q), ("k_", maps.to_k), ("v_", maps.to_v)):
            _factored(plan, part, each, name, slot)
    elif type(maps) is Projections:
        part.numbers["projection"] = DENSE
        three = [cast(nn.Linear, each) for each in (maps.to_q, maps.to_k, maps.to_v)]
        part.tensors["qkv"] = plan.matrix(f"{name}.qkv", [each.weight for each in three])
        part.tensors |= plan.vector(f"{name}.qkv_bias", *(each.bias for each in three))
    else:
        raise Unsupported(f"native decoding does not support the projections {type(maps).__name__}")
    if isinstance(maps.to_out, nn.Linear):
        part.tensors["out"] = plan.matrix(f"{name}.out", [maps.to_out.weight])
        part.tensors |= plan.vector(f"{name}.out_bias", maps.to_out.bias)


def _factored(plan: NativePlan, part: NativeSublayer, maps: Multiply, name: str, slot: str) -> None:
    modules = plan.matrix(f"{name}.{slot}modules", [maps.scale], "columns", exact=True)
    part.tensors[f"{slot}modules"] = modules
    part.tensors[f"{slot}mix"] = plan.matrix(f"{name}.{slot}mix", [maps.weight], "panels")
    part.tensors |= plan.vector(f"{name}.{slot}mix_bias", maps.bias)


def _convolved(
    plan: NativePlan, part: NativeSublayer, maps: ConvolvedProjections, frame: Any, name: str
) -> None:
    if frame.heads * frame.head_dim != frame.dim:
        raise Unsupported(
            "native decoding needs convolved heads that are together as wide as the model; got "
            f"heads · head_dim = {frame.heads * frame.head_dim} and dim = {frame.dim}"
        )
    length, span = maps.to_q.weight.shape[2:]
    part.numbers |= {"projection": CONVOLVED, "length": length, "span": span}
    _factored(plan, part, maps.shared, name, "")
    both = [maps.to_q, maps.to_k]
    part.tensors["conv_qk"] = plan.matrix(f"{name}.conv_qk", [m.weight for m in both], "taps")
    part.tensors["conv_v"] = plan.matrix(f"{name}.conv_v", [maps.to_v.weight], "taps")
    part.tensors |= plan.vector(f"{name}.conv_qk_bias", *(m.bias for m in both))
    part.tensors |= plan.vector(f"{name}.conv_v_bias", maps.to_v.bias)

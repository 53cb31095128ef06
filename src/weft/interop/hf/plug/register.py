"""Patterns under a name that Transformers takes as `attn_implementation`.

Transformers looks names up in tables and cannot parse a pattern out of one, so a pattern is
registered first. The attention function and the mask function go together: under a name with no
mask function of its own, Transformers makes no mask at all.
"""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from weft.interop.hf.plug.function import PatternAttentionFunction
from weft.interop.hf.plug.layers import LayerPatterns, Patterns, read_patterns
from weft.interop.hf.plug.plan import plan_mask

_FUNCTIONS: dict[str, PatternAttentionFunction] = {}


def register(patterns: Patterns) -> str:
    """The name for `attn_implementation=`; equal patterns have one name.

    >>> name = register("sliding(512)")
    >>> AutoModel.from_pretrained(folder, attn_implementation=name)  # doctest: +SKIP
    """
    return function_for(read_patterns(patterns)).name


def function_for(patterns: LayerPatterns) -> PatternAttentionFunction:
    """The registered attention function of these patterns."""
    name = patterns.name
    if name not in _FUNCTIONS:
        _FUNCTIONS[name] = PatternAttentionFunction(patterns, name)
        AttentionInterface.register(name, _FUNCTIONS[name])
        AttentionMaskInterface.register(name, plan_mask)
    return _FUNCTIONS[name]


def registered(name: str) -> PatternAttentionFunction | None:
    """The function under a name; None where the name is not ours."""
    return _FUNCTIONS.get(name)

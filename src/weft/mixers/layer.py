"""A mechanism as a layer of one's own model, in one call.

>>> import torch
>>> layer = attention("longformer(window=257)", dim=64, heads=4)
>>> layer(torch.randn(2, 1000, 64)).shape
torch.Size([2, 1000, 64])
"""

from __future__ import annotations

from typing import Any, Required, TypedDict, Unpack

from weft.errors import WeftError
from weft.mixers.base import MIXERS, Mixer, Traits
from weft.patterns import Pattern
from weft.patterns import pattern as parse_pattern


class FrameFields(TypedDict, total=False):
    """The fields of `Frame`, so that an editor completes them; same defaults."""

    dim: Required[int]
    heads: int
    kv_heads: int | None
    head_dim: int | None
    causal: bool
    length: int | None
    layer: int
    positions: Any
    dropout: float
    bias: bool
    seed: int
    projection: Any


def mixer(spec: Any) -> Any:
    """The mixer config that a string such as `longformer(window=512)`, or a Pattern, describes."""
    if isinstance(spec, Pattern):
        return _under(spec)
    config = _parsed(spec) if isinstance(spec, str) else spec
    if isinstance(config, type) or not isinstance(getattr(config, "traits", None), Traits):
        raise WeftError(
            "a mixer is a spec such as `longformer(window=512)`, a config such as "
            f"Longformer(window=512), or a Pattern; got {spec!r}"
        )
    return config


def attention(spec: Any, **settings: Unpack[FrameFields]) -> Mixer:
    """A layer (b, n, dim) -> (b, n, dim) of the mechanism that `spec` names.

    `spec` is a string (`"longformer(window=257)"`), a config (`Longformer(window=257)`) or a
    pattern (`Causal() & Sliding(512)`); `weft mixers` lists them. The settings are the fields of
    `Frame`: dim, heads, causal, positions, ... Call the layer with `attention_mask=` where rows
    hold padding.
    """
    config = mixer(spec)
    return config.build(MIXERS.framed(config, settings))


def _under(pattern: Pattern) -> Any:
    try:
        return MIXERS.make("pattern", reads=str(pattern))
    except WeftError as error:
        raise WeftError(
            f"a layer stores its pattern as text, and this one cannot be written: {error}. "
            "weft.attend(q, k, v, pattern) takes any pattern"
        ) from None


def _parsed(spec: str) -> Any:
    try:
        return MIXERS.parse(spec)
    except WeftError as error:
        try:
            parse_pattern(spec)
        except WeftError:
            raise error from None
        raise WeftError(
            f"{spec!r} is a pattern, not a mixer; give it as one, weft.pattern({spec!r}), "
            f"or write pattern(reads={spec!r})"
        ) from None

"""Which layer of a model reads under which pattern.

    "sliding(512)"                              every layer
    {"*": "sliding(512)", "4,9-11": "full()"}   some layers differ; the first is 0
    {"encoder.*": "sliding(512)"}               one side of an encoder-decoder

The most exact key decides: layers of a side, layers, a side, all. A layer without any pattern reads
as the model does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from weft.errors import Unsupported, WeftError
from weft.patterns import Causal, Full, Pattern
from weft.patterns import pattern as parse
from weft.patterns.derive import mask
from weft.patterns.lower import branches

PatternByLayer = Mapping[str, str | Pattern] | Mapping[int, str | Pattern]
Patterns = str | Pattern | PatternByLayer

SIDES = ("encoder", "decoder")
_KEY = re.compile(rf"(?:(?P<side>{'|'.join(SIDES)})\.)?(?P<layers>\*|[\d,\s-]+)")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_SHORT = 512  # positions on which a pattern is looked at


@dataclass(frozen=True)
class LayerRule:
    """A pattern, and the layers it is for."""

    pattern: Pattern
    side: str | None = None  # None: both
    layers: frozenset[int] | None = None  # None: all

    @property
    def rank(self) -> tuple[bool, bool]:
        """The higher decides."""
        return self.layers is not None, self.side is not None

    def applies(self, side: str | None, layer: int | None) -> bool:
        """Whether it is for this layer."""
        inside = self.layers is None or layer in self.layers
        return inside and self.side in (None, side)


@dataclass(frozen=True)
class LayerPatterns:
    """The patterns of a model's layers."""

    rules: tuple[LayerRule, ...]  # the most exact first

    @property
    def by_layer(self) -> bool:
        """Whether layers differ, so that their numbers matter."""
        return any(rule.layers is not None for rule in self.rules)

    @property
    def by_side(self) -> bool:
        """Whether encoder and decoder differ."""
        return any(rule.side is not None for rule in self.rules)

    @property
    def name(self) -> str:
        """The same for equal patterns, in every process: what Transformers knows them by."""
        text = "; ".join(sorted(_text(rule) for rule in self.rules))
        return f"weft_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def of(self, side: str | None, layer: int | None) -> Pattern:
        """The pattern of a layer; `full()` where there is none for it."""
        for rule in self.rules:
            if rule.applies(side, layer):
                return rule.pattern
        return Full()

    def check_layers(self, count: int, sides: bool) -> None:
        """Refuse layers that a model of `count` layers has not, and sides where there are none."""
        if self.by_side and not sides:
            raise WeftError(
                "encoder. and decoder. name the sides of an encoder-decoder, and this model is "
                'none; write "*" or layer numbers'
            )
        named = {layer for rule in self.rules for layer in rule.layers or ()}
        if named and max(named) >= count:
            raise WeftError(
                f"the layers of this model are 0 to {count - 1}; got a pattern for {max(named)}"
            )


def read_patterns(patterns: Patterns) -> LayerPatterns:
    """One pattern for all layers, or a mapping of layers to patterns."""
    if not isinstance(patterns, Mapping):
        return LayerPatterns((LayerRule(parse(patterns)),))
    if not patterns:
        raise WeftError('patterns by layer are {"*": "sliding(512)"}; got an empty mapping')
    rules = [_rule(str(key), parse(each)) for key, each in patterns.items()]
    rules.sort(key=lambda rule: rule.rank, reverse=True)
    _refuse_twice(rules)
    return LayerPatterns(tuple(rules))


def _rule(key: str, pattern: Pattern) -> LayerRule:
    found = _KEY.fullmatch(key.strip())
    if found is None:
        raise WeftError(
            f'a key names layers: "*", "4,9-11", "encoder.*" or "decoder.0"; got {key!r}'
        )
    if found["layers"] == "*":
        return LayerRule(pattern, found["side"])
    layers: set[int] = set()
    for part in found["layers"].split(","):
        span = _SPAN.fullmatch(part.strip())
        if span is None or (span[2] is not None and int(span[2]) < int(span[1])):
            raise WeftError(f'layers are numbers and spans such as "4,9-11"; got {key!r}')
        layers |= set(range(int(span[1]), int(span[2] or span[1]) + 1))
    return LayerRule(pattern, found["side"], frozenset(layers))


def _refuse_twice(rules: list[LayerRule]) -> None:
    seen: set[tuple[str | None, int | None]] = set()
    for rule in rules:
        for layer in rule.layers or (None,):
            place = "all layers" if layer is None else f"layer {layer}"
            if (rule.side, layer) in seen:
                raise WeftError(f"each layer has one pattern; {place} got two")
            seen.add((rule.side, layer))


def _text(rule: LayerRule) -> str:
    layers = "*" if rule.layers is None else ",".join(map(str, sorted(rule.layers)))
    try:
        text = rule.pattern.spec
    except Unsupported:  # a Python function: it lives as long as this process
        text = f"{rule.pattern!r} at {id(rule.pattern)}"
    return f"{rule.side}.{layers}: {text}"


@lru_cache(maxsize=256)
def made_causal(pattern: Pattern, heads: int) -> Pattern:
    """What a decoder reads under a pattern: its past and itself alone.

    A branch that reads nothing but later positions is refused: causal, it would read nothing.
    """
    each = dict.fromkeys(pattern.head(a, heads) for a in range(heads))
    for branch in (branch for own in each for branch in branches(own)):
        seen = mask(branch, _SHORT)[0]
        if seen.any() and not torch.tril(seen).any():
            raise WeftError(
                f"a decoder reads the past alone, and {branch} reads only later positions: nothing "
                "is left of it; leave it out, or use the pattern in an encoder"
            )
    return pattern if pattern.causal else Causal() & pattern

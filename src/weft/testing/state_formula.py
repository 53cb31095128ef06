"""Checks of `traits.state`: the formula is evaluated and compared with what a state holds.

Letters are those of the shape legend: n tokens, c width, h heads, g key heads, d width of a head;
a whole number of the config goes by its name; others (w, f, …) come from `mixer.letters`.
Operators are · + − / and parentheses, with min, max and log2.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
from collections.abc import Mapping
from typing import Any

from weft.mixers.base import Mixer
from weft.testing import cases
from weft.testing.cases import describe

LENGTHS, LONG = range(1, 161), 100
TIGHT = 0.7  # of the bound is reached at some long length; a factor of 2 too many is 0.5
_SYMBOLS = str.maketrans({"·": "*", "−": "-"})
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS = {"min": min, "max": max, "log2": math.log2}


def check_state_formula(config: Any, *, device: str = "cpu") -> None:
    """`traits.state` bounds the numbers a state holds at every length, and is nearly reached."""
    for frame in (*cases.frames(config, causal=True), *cases.framings(config, causal=True)):
        mixer = cases.build(config, frame, device=device)
        what, formula = describe(config, frame), config.traits.state
        closest = 0.0
        for tokens in LENGTHS:
            said, held = evaluated(mixer, tokens), mixer.state_size(tokens)
            assert held <= said + 1e-9, (
                f"{what}: after {tokens} tokens the state holds {held} numbers per row, "
                f"traits.state = {formula!r} is {said:g}"
            )
            if tokens >= LONG:
                closest = max(closest, held / said if said else 1.0)
        assert closest >= TIGHT, (
            f"{what}: traits.state = {formula!r} is never nearly reached; at most {closest:.0%} of "
            f"it after {LONG} to {LENGTHS[-1]} tokens"
        )


def evaluated(mixer: Mixer, tokens: int) -> float:
    """`traits.state` of this module after `tokens` tokens, and the state of its projections."""
    formula, frame = mixer.config.traits.state, mixer.frame
    fields = {
        field.name: value
        for field in dataclasses.fields(mixer.config)
        if type(value := getattr(mixer.config, field.name)) is int
    }
    widths = {"c": frame.dim, "h": frame.heads, "g": frame.kv_heads, "d": frame.head_dim}
    letters = fields | widths | mixer.letters(tokens) | {"n": tokens}
    try:
        said = _value(ast.parse(formula.translate(_SYMBOLS), mode="eval").body, letters)
        return said + getattr(getattr(mixer, "project", None), "memory_size", 0)
    except (SyntaxError, KeyError) as error:
        raise AssertionError(
            f"{describe(mixer.config, frame)}: traits.state = {formula!r} cannot be evaluated "
            f"({error}); it is a formula in {', '.join(letters)}"
        ) from None


def _value(node: ast.expr, letters: Mapping[str, int]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return letters[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, letters), _value(node.right, letters))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _FUNCTIONS[node.func.id](*(_value(each, letters) for each in node.args))
    raise KeyError(ast.unparse(node))

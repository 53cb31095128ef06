"""Spec strings: `longformer(window=512)`, `sliding(512) | global(first=64)`; one parser, no eval.

Grammar (precedence as in Python: `~` over `&` over `|`):

    spec  := and ("|" and)*            and := not ("&" not)*          not := "~" not | atom
    atom  := name [ "(" args ")" ] | "(" spec ")" | "[" items "]" | number | string
    args  := [key "="] spec, ...

Names are words; `true`, `false` and `none` are values. As in TOML, 'text' is taken literally and
"text" may hold escapes (`\\n`, `\\"`). Python's keywords are no obstacle (`global` is a pattern),
which is why this is not `ast.parse`. The result is a tree of calls and values; a registry turns it
into configs, setting by setting, as the type hints say (`weft.config`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.errors import WeftError

DEEPEST, LONGEST, DIGITS = 100, 100_000, 30  # levels, characters, digits of a whole number

_TOKEN = re.compile(
    r"(?P<number>[-+]?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|inf\b))"
    r"|(?P<name>[A-Za-z_][\w.]*)|(?P<string>'[^']*'|\"(?:[^\"\\]|\\.)*\")|(?P<op>[|&~()\[\],=])"
)
_SPACE = re.compile(r"\s*")
_CONSTANTS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Call:
    """A name, with settings or without."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """As it is written."""
        given = [*map(literal, self.args), *(f"{k}={literal(v)}" for k, v in self.kwargs.items())]
        return f"{self.name}({', '.join(given)})" if given else self.name


@dataclass(frozen=True)
class Join:
    """Several specs joined by `|` or `&`, or one negated by `~`."""

    op: str
    parts: tuple[Any, ...]

    def __repr__(self) -> str:
        """As it is written."""
        if self.op == "~":
            return f"~({self.parts[0]!r})"
        return f" {self.op} ".join(f"({part!r})" for part in self.parts)


def parse(text: str) -> Any:
    """Read one spec: a `Call`, a `Join`, or a plain value."""
    parser = _Parser(text)
    value = parser.union()
    parser.expect_end()
    return value


def parse_list(text: str) -> list[Any]:
    """Read specs separated by commas: `full, longformer(window=256)`."""
    parser = _Parser(text)
    values = [parser.union()]
    while parser.take(","):
        values.append(parser.union())
    parser.expect_end()
    return values


def write(name: str, kwargs: dict[str, Any]) -> str:
    """The spec string of a call; `parse` reads it back."""
    return repr(Call(name, (), kwargs))


def literal(value: Any) -> str:
    """A value as a spec holds it."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        plain = "'" not in value and value.isprintable()
        return f"'{value}'" if plain else json.dumps(value, ensure_ascii=False)
    return repr(value) if isinstance(value, int | float) else str(value)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.index, self.depth = text, 0, 0
        if len(text) > LONGEST:
            raise WeftError(
                f"a spec has up to {LONGEST:,} characters; this one has {len(text):,} and begins "
                f"{text[:40]!r}"
            )
        self.tokens: list[tuple[str, str, int]] = []
        position = _end_of_space(text, 0)
        while position < len(text):
            match = _TOKEN.match(text, position)
            if not match:
                raise self.error("unexpected character", position)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match.group(kind), position))
            position = _end_of_space(text, match.end())

    def error(self, what: str, at: int | None = None) -> WeftError:
        if at is None:
            at = self.tokens[self.index][2] if self.index < len(self.tokens) else len(self.text)
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return WeftError(
            f"{what} at column {at + 1} of {shown!r}; "
            "a spec reads like `longformer(window=512)` or `sliding(512) | global(first=64)`"
        )

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.index][:2] if self.index < len(self.tokens) else ("end", "")

    def take(self, op: str) -> bool:
        found = self.peek() == ("op", op)
        self.index += found
        return found

    def expect(self, op: str) -> None:
        if not self.take(op):
            raise self.error(f"expected {op!r}")

    def expect_end(self) -> None:
        if self.index < len(self.tokens):
            raise self.error("expected the end")

    def union(self) -> Any:
        return self.joined("|", self.intersection)

    def intersection(self) -> Any:
        return self.joined("&", self.negation)

    def joined(self, op: str, part: Callable[[], Any]) -> Any:
        parts = [part()]
        while self.take(op):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Join(op, tuple(parts))

    def negation(self) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"more than {DEEPEST} levels, one inside the other,")
        value = Join("~", (self.negation(),)) if self.take("~") else self.atom()
        self.depth -= 1
        return value

    def atom(self) -> Any:
        kind, text = self.peek()
        if self.take("("):
            value = self.union()
            self.expect(")")
            return value
        if self.take("["):
            return self.items("]")[0]
        if kind in ("end", "op"):
            raise self.error("expected a name or a value")
        if kind != "name":
            value = self.number(text) if kind == "number" else self.string(text)
            self.index += 1
            return value
        self.index += 1
        if text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        return Call(text, *self.items(")")) if self.take("(") else Call(text)

    def number(self, text: str) -> int | float:
        digits = text.replace("_", "")
        if not re.fullmatch(r"[-+]?\d+", digits):
            return float(digits)
        if len(digits.lstrip("+-")) > DIGITS:
            raise self.error(f"a whole number of more than {DIGITS} digits")
        return int(digits)

    def string(self, text: str) -> str:
        if not text.startswith('"'):
            return text[1:-1]
        try:
            return json.loads(text, strict=False)
        except ValueError as cause:
            raise self.error("an unknown escape; 'single quotes' take a text literally,") from cause

    def items(self, close: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        while not self.take(close):
            kind, text = self.peek()
            following = self.tokens[self.index + 1][:2] if self.index + 1 < len(self.tokens) else ()
            if close == ")" and kind == "name" and following == ("op", "="):
                self.index += 2
                if text in kwargs:
                    raise self.error(f"{text!r} is given twice")
                kwargs[text] = self.union()
            else:
                args.append(self.union())
            if not self.take(","):
                self.expect(close)
                break
        return tuple(args), kwargs


def _end_of_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position

"""Spec strings: `longformer(window=512)`, `sliding(512) | global(first=64)`; one parser, no eval.

Grammar (precedence as in Python: `~` over `&` over `|`):

    spec  := and ("|" and)*            and := not ("&" not)*          not := "~" not | atom
    atom  := name [ "(" args ")" ] | "(" spec ")" | "[" items "]" | number | string
    args  := [key "="] spec, ...

Names are words; `true`, `false` and `none` are values. Python's keywords are no
obstacle (`global` is a pattern), which is why this is not `ast.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from weft.errors import WeftError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[A-Za-z_][\w.]*)|(?P<string>'[^']*'|\"[^\"]*\")|(?P<op>[|&~()\[\],=]))"
)
_CONSTANTS = {"true": True, "false": False, "none": None}

Make = Callable[[str, list[Any], dict[str, Any]], Any]


def parse(text: str, make: Make) -> Any:
    """Read one spec; `make(name, args, kwargs)` turns each name or call into a value."""
    parser = _Parser(text, make)
    value = parser.union()
    parser.expect_end()
    return value


def parse_list(text: str, make: Make) -> list[Any]:
    """Read specs separated by commas: `full, longformer(window=256)`."""
    parser = _Parser(text, make)
    values = [parser.union()]
    while parser.take(","):
        values.append(parser.union())
    parser.expect_end()
    return values


def write(name: str, kwargs: dict[str, Any]) -> str:
    """The spec string of a call; `parse` reads it back."""
    if not kwargs:
        return name
    return f"{name}({', '.join(f'{k}={_literal(v)}' for k, v in kwargs.items())})"


def _literal(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str | int | float) else str(value)


class _Parser:
    def __init__(self, text: str, make: Make) -> None:
        self.text, self.make, self.tokens, self.index = text, make, [], 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match:
                raise self.error("unexpected character", len(text) - len(text[position:].lstrip()))
            kind = match.lastgroup or ""
            self.tokens.append((kind, match.group(kind), match.start(kind)))
            position = match.end()

    def error(self, what: str, at: int | None = None) -> WeftError:
        if at is None:
            at = self.tokens[self.index][2] if self.index < len(self.tokens) else len(self.text)
        return WeftError(
            f"{what} at column {at + 1} of {self.text!r}; "
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
        value = self.intersection()
        while self.take("|"):
            value = self.combine("|", value, self.intersection())
        return value

    def intersection(self) -> Any:
        value = self.negation()
        while self.take("&"):
            value = self.combine("&", value, self.negation())
        return value

    def combine(self, op: str, left: Any, right: Any) -> Any:
        try:
            return left | right if op == "|" else left & right
        except TypeError as cause:
            raise self.error(f"{op!r} does not join these two values", 0) from cause

    def negation(self) -> Any:
        if not self.take("~"):
            return self.atom()
        value = self.negation()
        try:
            return ~value
        except TypeError as cause:
            raise self.error("'~' does not apply to this value", 0) from cause

    def atom(self) -> Any:
        kind, text = self.peek()
        if self.take("("):
            value = self.union()
            self.expect(")")
            return value
        if self.take("["):
            return tuple(self.items("]")[0])
        if kind == "end" or kind == "op":
            raise self.error("expected a name or a value")
        self.index += 1
        if kind == "number":
            number = text.replace("_", "")
            return int(number) if re.fullmatch(r"[-+]?\d+", number) else float(number)
        if kind == "string":
            return text[1:-1]
        if text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        args, kwargs = self.items(")") if self.take("(") else ([], {})
        return self.make(text, args, kwargs)

    def items(self, close: str) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        while not self.take(close):
            kind, text = self.peek()
            following = self.tokens[self.index + 1][:2] if self.index + 1 < len(self.tokens) else ()
            if kind == "name" and following == ("op", "="):
                self.index += 2
                if text in kwargs:
                    raise self.error(f"{text!r} is given twice")
                kwargs[text] = self.union()
            else:
                args.append(self.union())
            if not self.take(","):
                self.expect(close)
                break
        return args, kwargs

"""Errors that name the rule, the value and the way out.

Callers' mistakes are `ValueError`s (so existing handlers catch them); `assert` guards our own
invariants only.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WeftError(ValueError):
    """A rule of weft was broken by the caller."""


class Unsupported(WeftError):
    """The mechanism cannot do this by its mathematics; the message names those that can."""


def at_least(least: int, **values: int | None) -> None:
    """Refuse settings under their least value, by name; None is one that was not given."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise WeftError(f"{name} is a whole number of at least {least}; got {name}={value!r}")


def suggest(name: str, known: Iterable[str]) -> str:
    """The way out of an unknown name: the near ones, or all."""
    if not (known := sorted(known)):
        return "it has none"
    near = get_close_matches(name, known, n=3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(known)}"

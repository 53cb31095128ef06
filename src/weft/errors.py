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


def suggest(name: str, known: Iterable[str]) -> str:
    """The way out of an unknown name: the near ones, or all."""
    known = sorted(known)
    near = get_close_matches(name, known, n=3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(known)}"

"""Errors that name the rule, the value and the way out.

Callers' mistakes are `ValueError`s (so existing handlers catch them); `assert` guards our own
invariants only.
"""


class WeftError(ValueError):
    """A rule of weft was broken by the caller."""


class Unsupported(WeftError):
    """The mechanism cannot do this by its mathematics; the message names those that can."""

"""Text from elsewhere, safe to print: an escape sequence would command the terminal."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_UNSAFE = ("Cc", "Cs")  # escape, bell and C1 codes; halves of characters
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # show text backwards


def printable(text: str) -> str:
    r"""Control characters as their escapes, `\x1b`; lines and tabs stay."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    unsafe = unicodedata.category(letter) in _UNSAFE or letter in _TURNING
    return letter.encode("unicode_escape").decode() if unsafe and letter not in _KEPT else letter

"""When a row ends: at a token, at a string in its text, or when it is long enough.

A token that ends a row stays in its ids, and so does the one that completes a stop string; the text
stops before the string. The stop string that is complete first counts, of several that end at the
same character the longest. So the text does not depend on tokenisation: a stop string may begin
inside one token and end inside another. Text that may still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from weft.errors import WeftError
from weft.generate.text import TextCodec

Reason = Literal["token", "string", "length"]


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """What ends a row."""

    new_tokens: int  # the most that are added
    tokens: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.new_tokens < 0:
            raise WeftError(f"max_new_tokens is 0 or more; got {self.new_tokens}")
        if not all(self.strings):
            raise WeftError("a stop string has at least one character; got an empty one")

    @classmethod
    def at(cls, new_tokens: int, stop: int | str | Iterable[int | str] | None) -> Stopping:
        """After `new_tokens` tokens, or at ids and strings, one or several of them."""
        given = [stop] if isinstance(stop, int | str) else list(stop or ())
        return cls(
            new_tokens=new_tokens,
            tokens=frozenset(int(item) for item in given if not isinstance(item, str)),
            strings=tuple(item for item in given if isinstance(item, str)),
        )

    def watch(self, before: Sequence[int], text: TextCodec | None) -> StopChecker:
        """A checker for one row that continues the ids `before`."""
        if self.strings and text is None:
            raise WeftError(
                f"the stop strings {list(self.strings)} are looked for in text; "
                "give text=, which says how ids become text (weft.generate.ByteText())"
            )
        return StopChecker(self, before, text)


class StopChecker:
    """One row: takes its new tokens, returns its text, knows when it has ended and why."""

    def __init__(self, stopping: Stopping, before: Sequence[int], text: TextCodec | None) -> None:
        self._stopping = stopping
        self._writer = None if text is None else text.writer(before)
        self._held = HeldBack(stopping.strings)
        self.tokens: list[int] = []
        self.reason: Reason | None = None if stopping.new_tokens else "length"

    def push(self, token: int) -> str:
        """Add a token; returns the text that is certain now."""
        self.tokens.append(token)
        ends = token in self._stopping.tokens
        # A token that ends the row is not part of its text.
        piece = self._write("" if ends or self._writer is None else self._writer.push(token))
        if self.reason is None and ends:
            self.reason = "token"
        elif self.reason is None and len(self.tokens) >= self._stopping.new_tokens:
            self.reason = "length"
        return piece + self._rest() if self.reason in ("token", "length") else piece

    def _write(self, text: str) -> str:
        piece, found = self._held.push(text)
        if found:
            self.reason = "string"
        return piece

    def _rest(self) -> str:
        """The rest of the text of a row that no string has ended; it may still contain one."""
        if self._writer is None:
            return ""
        piece = self._write(self._writer.end())
        return piece if self.reason == "string" else piece + self._held.end()


class HeldBack:
    """Text in, the same text out up to the first stop string, as early as it is certain."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string has ended it."""
        self._held += text
        found = [(self._held.find(each) + len(each), -len(each)) for each in self._strings]
        found = [(end, size) for end, size in found if end >= -size]
        if found:
            end, size = min(found)
            certain, self._held = self._held[: end + size], ""
            return certain, True
        keep = max((_overlap(self._held, each) for each in self._strings), default=0)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        return certain, False

    def end(self) -> str:
        """What was held back, once no more text comes."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, string: str) -> int:
    """How many last characters of the text begin the string, the whole of it excepted."""
    sizes = range(min(len(text), len(string) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(string[:size])), 0)

"""Rules that mark tokens by what the ids are, for settings files and for any task.

    [marks]
    is_global = "first(1) | token(46)"     # the first token, and every full stop of a byte text

    first(n)    the first n tokens                       every(n)    tokens 0, n, 2·n, ...
    token(id)   tokens with this id, or one of [a, b]    count(id)   how many of these came before

Rules joined by | mark what one of them marks. `count` numbers sentences or documents: `member` of
etc, `segments` of patterns. Tokens are counted without padding, so padding changes no mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.models.stack.known_marks import known_marks
from weft.registry import Registry, suggest

MARKS = Registry("mark rule")
Rules = Mapping[str, "MarkRule"]  # by the name of the mark


class MarkRule:
    """Says something of each token of (b, n)."""

    def mark(self, ids: Tensor, place: Tensor) -> Tensor:
        """Ids (b, n), or values (b, n, channels), and how many tokens stand before each (b, n)."""
        raise NotImplementedError(f"{type(self).__name__} has to define mark")

    def __or__(self, other: MarkRule) -> MarkRule:
        return EitherRule(self, other)


@MARKS.register("first")
@dataclass(frozen=True)
class FirstTokens(MarkRule):
    """The first tokens of a row."""

    count: int = 1

    def __post_init__(self) -> None:
        _at_least_one("first", self.count)

    def mark(self, ids: Tensor, place: Tensor) -> Tensor:
        return place < self.count


@MARKS.register("every")
@dataclass(frozen=True)
class EveryNth(MarkRule):
    """Every `step`-th token, from the first on."""

    step: int

    def __post_init__(self) -> None:
        _at_least_one("every", self.step)

    def mark(self, ids: Tensor, place: Tensor) -> Tensor:
        return place % self.step == 0


@MARKS.register("token")
@dataclass(frozen=True)
class TokensEqual(MarkRule):
    """Tokens with this id, or with one of these."""

    id: int | tuple[int, ...]

    def mark(self, ids: Tensor, place: Tensor) -> Tensor:
        return _equal("token", ids, self.id)


@MARKS.register("count")
@dataclass(frozen=True)
class TokensBefore(MarkRule):
    """How many tokens with this id stand before each: the number of its sentence or document."""

    id: int | tuple[int, ...]

    def mark(self, ids: Tensor, place: Tensor) -> Tensor:
        found = (_equal("count", ids, self.id) & (place >= 0)).long()  # padding counts for none
        return found.cumsum(1) - found


@dataclass(frozen=True)
class EitherRule(MarkRule):
    """What one of two rules marks."""

    one: MarkRule
    other: MarkRule

    def __str__(self) -> str:
        return f"{self.one} | {self.other}"

    def mark(self, ids: Tensor, place: Tensor) -> Tensor:
        return _either("a rule", self.one.mark(ids, place), self.other.mark(ids, place))


def read_rules(given: Any) -> dict[str, MarkRule]:
    """The rules of a settings file, `{"is_global": "first(1)"}`."""
    if not isinstance(given, Mapping):
        raise WeftError(f'marks are a table such as {{is_global = "first(1)"}}; got {given!r}')
    known = known_marks(MIXERS[name]() for name in MIXERS)
    for name, rule in given.items():
        if name not in known:
            raise WeftError(f"no mixer knows a mark {name!r}; {suggest(name, known)}")
        if not isinstance(rule, str):
            raise WeftError(f'marks.{name} is a rule such as "first(1)"; got {rule!r}')
    return {name: _parsed(name, rule) for name, rule in given.items()}


def _parsed(name: str, rule: str) -> MarkRule:
    try:
        return MARKS.parse(rule)
    except WeftError as error:
        raise WeftError(f"marks.{name}: {error}") from error


def marks_by(
    rules: Rules, ids: Tensor, valid: Tensor | None, given: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The marks (b, n) of ids (b, n): those that are given, and those of the rules."""
    given = dict(given or {})
    real = torch.ones(ids.shape[:2], dtype=torch.bool) if valid is None else valid
    place = (real.long().cumsum(1) - 1).masked_fill(~real, -1)  # (b, n)
    for name, rule in rules.items():
        found = rule.mark(ids, place)
        found = found & real if found.dtype == torch.bool else found.masked_fill(~real, 0)
        given[name] = _either(name, given[name], found) if name in given else found
    return given


def _either(name: str, one: Tensor, other: Tensor) -> Tensor:
    if one.dtype != torch.bool or other.dtype != torch.bool:
        raise WeftError(f"{name} joins marks that are True or False; a number has one source")
    return one | other


def _equal(rule: str, ids: Tensor, wanted: int | tuple[int, ...]) -> Tensor:
    if ids.is_floating_point():
        raise WeftError(f"{rule} compares ids, and this task has values; use first or every")
    found = ids[..., None] == torch.tensor(wanted).flatten()  # (..., k)
    return found.any(-1)


def _at_least_one(rule: str, count: int) -> None:
    if not isinstance(count, int) or count < 1:
        raise WeftError(f"{rule} counts tokens, at least 1; got {rule}({count})")

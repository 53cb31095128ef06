"""A pattern says which query position may read which key position; `|`, `&` and `~` combine them.

Everything is derived from two questions that each primitive answers:

    sees(i, j, length)          for single positions: the definition
    covers(rows, cols, length)  for blocks of positions, in closed form: does *some* pair see, does
                                *every* pair see (the block calculus)

`covers` combines soundly: a block that is only *maybe* visible is computed and masked with `sees`,
so results are exact. Patterns are immutable values: equal ones compare equal and hash alike.

`length` is the number of positions there are, or None where it is not known yet (decoding); a
pattern that needs it says so.

`spec` is the canonical text of a pattern, from which `pattern` makes an equal one in any process;
`key` is its hash. Whatever has to name a pattern outside Python objects (a compiled graph, a file)
uses these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.patterns.region import Coverage, Region
from weft.registry import Registry

PATTERNS = Registry("pattern")


class Pattern:
    """Which query position i may read which key position j."""

    name: ClassVar[str]
    relative: ClassVar[bool] = False  # depends on i − j alone
    causal: ClassVar[bool] = False  # never reads a later position
    needs_length: ClassVar[bool] = False
    everything: ClassVar[bool] = False  # the neutral element of `&`
    per_head: ClassVar[bool] = False  # differs between heads

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        """Whether query i reads key j; i and j are broadcastable tensors (torch or numpy)."""
        raise NotImplementedError(f"{type(self).__name__} has to define sees")

    def bind(self, length: int, device: Any) -> Callable[[Any, Any], Any]:
        """`sees` as a function of i and j alone, its tables on the device: for compiled kernels."""
        return lambda i, j: self.sees(i, j, length)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        """Whether some and every pair of rows × cols sees; regions broadcast."""
        raise NotImplementedError(f"{type(self).__name__} has to define covers")

    def every_nth(self, step: int) -> Pattern | None:
        """The same pattern among positions r, r + step, r + 2·step, ... counted 0, 1, 2, ...

        None where the answer depends on r or is not a pattern of this algebra.
        """
        return None

    def head(self, index: int, heads: int) -> Pattern:
        """The pattern of one head out of `heads`."""
        return self

    @property
    def spec(self) -> str:
        """Canonical text with every setting written out: `pattern(p.spec) == p` in any process."""
        name = getattr(type(self), "name", "")
        if name not in PATTERNS or PATTERNS[name] is not type(self) or not is_dataclass(self):
            raise Unsupported(
                f"{type(self).__name__} has no text form, so it has no key; make it a frozen "
                "dataclass registered with PATTERNS.register, or join registered patterns"
            )
        settings = (f"{f.name}={_literal(getattr(self, f.name))}" for f in fields(self))
        return f"{name}({', '.join(settings)})"

    @property
    def key(self) -> str:
        """A hash of `spec`: the same in every process, and for equal patterns alone."""
        return hashlib.sha256(self.spec.encode()).hexdigest()[:16]

    def __or__(self, other: Pattern) -> Pattern:
        return _join(Or, self, other)

    def __and__(self, other: Pattern) -> Pattern:
        return _join(And, self, other)

    def __invert__(self) -> Pattern:
        return self.inner if isinstance(self, Not) else Not(self)


def pattern(text: str | Pattern) -> Pattern:
    """Read an expression such as `causal & (sliding(128) | strided(128))`."""
    if isinstance(text, Pattern):
        return text
    if not isinstance(text, str):
        raise WeftError(
            "a pattern is a Pattern such as Causal() & Sliding(512), or the same as text, "
            f"'causal() & sliding(512)'; got {_described(text)}"
        )
    made = PATTERNS.parse(text)
    if not isinstance(made, Pattern):
        raise WeftError(f"a pattern expression is needed; {text!r} is {made!r}")
    return made


def _described(value: Any) -> str:
    """A value for an error message; of a tensor its shape, and what to write instead."""
    if hasattr(value, "shape"):
        return (
            f"an array {tuple(value.shape)}: a rule of one's own is a Predicate, "
            "real keys are valid=(b, m)"
        )
    return repr(value)


@dataclass(frozen=True)
class _Combination(Pattern):
    """Several patterns joined by one operator."""

    parts: tuple[Pattern, ...]
    symbol: ClassVar[str]

    @property
    def relative(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return all(part.relative for part in self.parts)

    @property
    def needs_length(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return any(part.needs_length for part in self.parts)

    @property
    def per_head(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return any(part.per_head for part in self.parts)

    def every_nth(self, step: int) -> Pattern | None:
        inner = [part.every_nth(step) for part in self.parts]
        known = [part for part in inner if part is not None]
        return _fold(type(self), known) if len(known) == len(inner) else None

    def head(self, index: int, heads: int) -> Pattern:
        return _fold(type(self), [part.head(index, heads) for part in self.parts])

    @property
    def spec(self) -> str:
        return f" {self.symbol} ".join(_nested(part) for part in self.parts)

    def __str__(self) -> str:
        texts = (f"({p})" if isinstance(p, _Combination) else str(p) for p in self.parts)
        return f" {self.symbol} ".join(texts)


class Or(_Combination):
    """Reads what any part reads."""

    symbol = "|"

    def bind(self, length: int, device: Any) -> Callable[[Any, Any], Any]:
        tests = [part.bind(length, device) for part in self.parts]
        return lambda i, j: reduce(lambda a, b: a | b, [test(i, j) for test in tests])

    @property
    def causal(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return all(part.causal for part in self.parts)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return reduce(lambda a, b: a | b, (part.sees(i, j, length) for part in self.parts))

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        some, every = zip(*(part.covers(rows, cols, length) for part in self.parts), strict=True)
        return Coverage(reduce(np.logical_or, some), reduce(np.logical_or, every))


class And(_Combination):
    """Reads what all parts read."""

    symbol = "&"

    def bind(self, length: int, device: Any) -> Callable[[Any, Any], Any]:
        tests = [part.bind(length, device) for part in self.parts]
        return lambda i, j: reduce(lambda a, b: a & b, [test(i, j) for test in tests])

    @property
    def causal(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return any(part.causal for part in self.parts)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return reduce(lambda a, b: a & b, (part.sees(i, j, length) for part in self.parts))

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        some, every = zip(*(part.covers(rows, cols, length) for part in self.parts), strict=True)
        return Coverage(reduce(np.logical_and, some), reduce(np.logical_and, every))


@dataclass(frozen=True)
class Not(Pattern):
    """Reads what `inner` does not."""

    inner: Pattern

    @property
    def relative(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return self.inner.relative

    @property
    def needs_length(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return self.inner.needs_length

    @property
    def per_head(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return self.inner.per_head

    def bind(self, length: int, device: Any) -> Callable[[Any, Any], Any]:
        test = self.inner.bind(length, device)
        return lambda i, j: ~test(i, j)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        return ~self.inner.sees(i, j, length)

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        some, every = self.inner.covers(rows, cols, length)
        return Coverage(~every, ~some)

    def every_nth(self, step: int) -> Pattern | None:
        inner = self.inner.every_nth(step)
        return None if inner is None else ~inner

    def head(self, index: int, heads: int) -> Pattern:
        return ~self.inner.head(index, heads)

    @property
    def spec(self) -> str:
        return f"~{_nested(self.inner)}"

    def __str__(self) -> str:
        return f"~({self.inner})" if isinstance(self.inner, _Combination) else f"~{self.inner}"


@PATTERNS.register("per_head")
class PerHead(Pattern):
    """Different patterns in different heads: the heads are shared out in equal runs."""

    per_head = True
    patterns: tuple[Pattern, ...]

    def __init__(self, *patterns: Pattern) -> None:
        if not patterns:
            raise WeftError("per_head needs one pattern or more; got none")
        for each in patterns:
            if not isinstance(each, Pattern):
                raise WeftError(f"per_head takes patterns, one for each run of heads; got {each!r}")
        self.patterns = patterns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerHead) and self.patterns == other.patterns

    def __hash__(self) -> int:
        return hash(("per_head", self.patterns))

    @cached_property
    def causal(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return all(part.causal for part in self.patterns)

    @cached_property
    def needs_length(self) -> bool:  # type: ignore[override]  # a ClassVar in primitives
        return any(part.needs_length for part in self.patterns)

    def head(self, index: int, heads: int) -> Pattern:
        if heads % len(self.patterns):
            raise WeftError(
                f"per_head shares the heads out evenly: {heads} heads is not a multiple of "
                f"{len(self.patterns)} patterns"
            )
        run = heads // len(self.patterns)
        return self.patterns[index // run].head(index % run, run)

    def sees(self, i: Any, j: Any, length: int | None = None) -> Any:
        raise Unsupported("per_head has no single answer; use pattern.head(a, heads) for one head")

    def covers(self, rows: Region, cols: Region, length: int | None = None) -> Coverage:
        raise Unsupported("per_head has no single answer; use pattern.head(a, heads) for one head")

    @property
    def spec(self) -> str:
        return f"per_head({', '.join(part.spec for part in self.patterns)})"

    def __str__(self) -> str:
        return f"per_head({', '.join(map(str, self.patterns))})"

    __repr__ = __str__


def _nested(part: Pattern) -> str:
    return f"({part.spec})" if isinstance(part, _Combination) else part.spec


def _literal(value: Any) -> str:
    if isinstance(value, Pattern):
        return value.spec
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return str(value).lower() if value is None or isinstance(value, bool) else repr(value)


def _join(kind: Callable[[tuple[Pattern, ...]], Pattern], a: Pattern, b: object) -> Pattern:
    if not isinstance(b, Pattern):
        return NotImplemented
    return _fold(kind, [a, b])


def _fold(kind: Any, patterns: list[Pattern]) -> Pattern:
    """Join patterns: nested joins of the same kind flatten, repeats and neutral parts vanish."""
    flat: dict[Pattern, None] = {}
    for p in patterns:
        if isinstance(p, _Combination) and type(p) is kind:
            flat.update(dict.fromkeys(p.parts))
        else:
            flat[p] = None
    whole = [p for p in flat if p.everything]
    if whole and (kind is Or or len(flat) == len(whole)):
        return whole[0]
    for p in whole:
        del flat[p]
    return next(iter(flat)) if len(flat) == 1 else kind(tuple(flat))

"""What the planner answers: a kernel, the reason, and why faster ones do not take the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from weft.patterns.lower import Lowered

BLOCK = 128  # of queries and keys, where a kernel has no reason to take another size
_HEADER = ("place", "operation", "kernel", "why")


class Refusal(NamedTuple):
    """A rule that a call breaks, and the field of the request that breaks it.

    Made once, as constants: `torch.compile` traces the functions that return them.
    """

    rule: str
    field: str = ""

    def message(self, request: Any) -> str:
        """The rule and the value."""
        if not self.field:
            return self.rule
        value = str(getattr(request, self.field)).removeprefix("torch.")
        return f"{self.rule}; got {value}"


ON_GPU = Refusal("runs on a GPU", "device")
IN_HALF = Refusal("takes float16 and bfloat16", "dtype")
NO_BIAS = Refusal("takes no bias")


class Choice(NamedTuple):
    """Which kernel runs an operation, and why.

    A tuple of plain values, so that it can be made while `torch.compile` traces a call.
    """

    kernel: str
    reason: str
    operation: str = "attend"
    rejected: tuple[str, ...] = ()  # `kernel: why it does not take the call`, the fastest first
    lowered: Lowered | None = None  # of a block-sparse kernel: its parts
    block: int = BLOCK
    one_pass: bool = False  # each part continues the softmax of the one before; nothing to merge
    place: str = ""  # the module that made the call, if any

    @property
    def why(self) -> str:
        """The reason, and why faster kernels were rejected."""
        return "; ".join((self.reason, *(f"not {text}" for text in self.rejected)))


class Choices(tuple[Choice, ...]):
    """Choices in the order they were made; `str` is a table, equal neighbours in one line."""

    __slots__ = ()

    def __new__(cls, found: Iterable[Choice] = ()) -> Choices:
        return super().__new__(cls, tuple(found))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels alone."""
        return tuple(choice.kernel for choice in self)

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Place, operation, kernel and reason of each line of the table."""
        texts = ((c.place or "-", c.operation, c.kernel, c.why) for c in self)
        for (place, operation, kernel, why), same in groupby(texts):
            count = len(list(same))
            yield place, operation, kernel if count == 1 else f"{count}× {kernel}", why

    def __str__(self) -> str:
        rows = [_HEADER, *self.rows()]
        if len(rows) == 1:
            return "no operation with a choice of kernels"
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        return "\n".join(_line(row, widths) for row in rows)

    def __repr__(self) -> str:
        return f"Choices({list(self)!r})"


def _line(row: tuple[Any, ...], widths: list[int]) -> str:
    first = (f"{text:<{width}}" for text, width in zip(row, widths, strict=False))
    return "  ".join((*first, row[3])).rstrip()

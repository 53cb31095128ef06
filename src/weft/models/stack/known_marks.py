"""Which marks a stack takes: those that one of its mixers knows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from weft.errors import WeftError
from weft.layers.marks import Marks, check_shape
from weft.mixers import MIXERS
from weft.registry import suggest


def known_marks(mixers: Iterable[Any], causal: bool = False) -> set[str]:
    """The marks that some of these mixers (their configs) know; `causal`: when built causal."""
    every = (mark for mixer in mixers for mark in mixer.traits.marks)
    return {mark.name for mark in every if mark.causal or not causal}


def check_known(marks: Marks, mixers: list[Any], shape: tuple[int, int]) -> None:
    """Refuse marks that none of these mixers (their configs) knows, or that are not (b, n)."""
    known = known_marks(mixers)
    for name, mark in marks.items():
        if name not in known:
            raise WeftError(unknown_mark(name, mixers))
        check_shape(name, mark, shape)


def unknown_mark(name: str, mixers: list[Any]) -> str:
    """What to say of a mark that none of these mixers (their configs) knows."""
    by_mixer = {each: known_marks([MIXERS[each]()]) for each in MIXERS}
    able = [each for each, marks in by_mixer.items() if name in marks]
    if not able:
        every = set(chain.from_iterable(by_mixer.values()))
        return f"no mixer knows a mark {name!r}; {suggest(name, every)}"
    own = ", ".join(dict.fromkeys(mixer.name for mixer in mixers))
    return (
        f"no mixer of this stack knows the mark {name!r}: it has {own}; "
        f"mixers that do: {', '.join(able)}"
    )

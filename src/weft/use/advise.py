"""`weft.advise`: which mechanisms to try first, ranked, each with its reasons.

Three sources, and nothing else: traits (what a mechanism can do at all, and how its time grows),
measured speed beside dense attention, and measured accuracy beside dense attention. The measured
ones are the committed rows of `benchmarks/results`, of which the package carries the few numbers
needed (`measured.json`, written by docs/generate.py).

    score = log2(times as fast as dense, at most 16) + difference in accuracy / 0.02

So a doubling of speed weighs as much as two points of accuracy. Speed measured on another kind of
device counts half, and so does the accuracy of one task alone; accuracy that nobody measured counts
as four points lost. A mechanism without any measurement comes after those with one, in the order of
its time by the formula. It is a short list to compare on your own data, no verdict: the last line
is the command that does it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import resources
from statistics import mean
from typing import Any, Literal

from weft.errors import WeftError
from weft.mixers import MIXERS

MOST_FASTER = 16.0
POINTS = 0.02  # of accuracy, worth as much as a doubling of speed
UNKNOWN = -0.04  # accuracy that was not measured, beside dense attention's
# Their neighbours are those of a picture, whose width they have to be told.
PICTURES = ("axial", "image_transformer", "swin")
Facts = list[dict[str, Any]]


@dataclass(frozen=True)
class Suggestion:
    """One mechanism of the list."""

    mixer: str
    score: float | None  # None: nothing was measured
    faster: float | None  # than dense attention; None: not measured on such a device
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """A ranked list, who is not on it and why, and what to do next."""

    length: int
    causal: bool
    device: str
    suggestions: tuple[Suggestion, ...]
    excluded: dict[str, str] = field(default_factory=dict)
    command: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def advise(
    length: int | None = None,
    *,
    causal: bool = False,
    device: Literal["cpu", "cuda"] = "cpu",
    data: str | Sequence[str] | None = None,
    text: str = "text",
    label: str = "label",
    count: int = 5,
) -> Advice:
    """The `count` mechanisms to try first for sequences of this length, in bytes or tokens.

    With `data`, a table of texts and labels, the length is the one that 95 of 100 texts stay below.
    Dense attention is always in the list, since it is what every other one is measured against.
    """
    source = ""
    if data is not None:
        found, source = _length_of(data, text, label)
        length = length or found
    if length is None or length < 1:
        raise WeftError("say how long sequences are: length of at least 1, or data, a table")
    if device not in ("cpu", "cuda"):
        raise WeftError(f"device is cpu or cuda; got {device!r}")
    excluded = {name: why for name in MIXERS if (why := _impossible(name, causal))}
    every = [_suggestion(name, length, causal, device) for name in MIXERS if name not in excluded]
    every.sort(key=_rank)
    dense = next(one for one in every if one.mixer == "full")
    chosen = every[:count] if dense in every[:count] else [*every[: count - 1], dense]
    mixers = ",".join(one.mixer for one in chosen)
    task = source or f'--task "passages(length={length})"'
    return Advice(
        length, causal, device, tuple(chosen), excluded,
        f'weft compare {task} --mixers "{mixers}" --minutes 5 --out runs/advised',
    )  # fmt: skip


@lru_cache(maxsize=1)
def measured() -> dict[str, Facts]:
    """Speed and accuracy beside dense attention, from the committed rows."""
    path = resources.files("weft.use") / "measured.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _length_of(data: str | Sequence[str], text: str, label: str) -> tuple[int, str]:
    import numpy as np

    from weft.arena.tasks.table.task import table_from_options

    files = [data] if isinstance(data, str) else list(data)
    task = table_from_options(files[0] if len(files) == 1 else files, text, label)
    lengths = task.load("train").lengths
    named = " ".join(f"--data {path}" for path in files)
    return int(np.percentile(lengths, 95)), f"{named} --text {text} --label {label}"


def _impossible(name: str, causal: bool) -> str:
    traits = MIXERS[name]().traits
    if name == "pattern":
        return "it is what you make it: give it a pattern of your own"
    if name in PICTURES:
        return "it reads pictures: give it the width of yours"
    if causal and not traits.causal:
        return f"cannot be causal: {traits.note}"
    if not causal and not traits.bidirectional:
        return f"is causal by construction: {traits.note}"
    return ""


def _suggestion(name: str, length: int, causal: bool, device: str) -> Suggestion:
    traits = MIXERS[name]().traits
    if name == "full":
        reasons = ("exact, and what every other mechanism is measured against",)
        return Suggestion(name, 0.0, 1.0, reasons)
    faster, doublings, speed = _speed(name, length, causal, device)
    gain, quality = _quality(name)
    reasons = [*speed, *quality, f"time of a layer grows as {traits.time}"]
    if traits.exact:
        reasons.append("exact: dense softmax attention over the keys that it reads")
    if causal:
        state = f"decodes with {traits.state} numbers a layer" if traits.state else ""
        reasons.append(state or "does not decode token by token")
    if doublings is None and gain is None:
        return Suggestion(name, None, None, tuple(reasons))
    score = (doublings or 0.0) + (UNKNOWN if gain is None else gain) / POINTS
    return Suggestion(name, round(score, 3), faster, tuple(reasons))


def _speed(
    name: str, length: int, causal: bool, device: str
) -> tuple[float | None, float | None, list[str]]:
    """Times as fast as dense attention at the nearest measured length, its log2, and the words."""
    own = [fact for fact in measured()["speed"] if fact["mixer"] == name]
    if not own:
        return None, None, ["its speed was not measured"]
    here = [fact for fact in own if fact["device"] == device]
    near = _nearest(here or own, length, causal)
    doublings = math.log2(min(near["faster"], MOST_FASTER))
    if here:
        return near["faster"], doublings, [_told(near)]
    return None, doublings / 2, [f"not measured on {_place(device)}; {_told(near)}"]


def _nearest(facts: Facts, length: int, causal: bool) -> dict[str, Any]:
    """The fact of the same direction, where there is one, at the nearest length."""
    same = [fact for fact in facts if fact["causal"] == causal] or facts
    return min(same, key=lambda fact: abs(math.log(fact["length"] / length)))


def _told(fact: dict[str, Any]) -> str:
    way = "causal" if fact["causal"] else "both ways"
    what = "trained" if fact["what"] == "training" else "a layer"
    return (
        f"{fact['faster']:.2f} times as fast as dense attention at {fact['length']:,} tokens "
        f"({what}, {way}, {_place(fact['device'])})"
    )


def _place(device: str) -> str:
    return "a CPU" if device == "cpu" else "a GPU"


def _quality(name: str) -> tuple[float | None, list[str]]:
    """Mean difference in accuracy to dense attention over the committed tasks, and the tasks."""
    own = [fact for fact in measured()["quality"] if fact["mixer"] == name]
    if not own:
        return None, ["its accuracy was not measured here"]
    told = ", ".join(f"{fact['task']} {fact['score'] - fact['dense']:+.3f}" for fact in own)
    gain = mean(fact["score"] - fact["dense"] for fact in own)
    return gain / (2 if len(own) == 1 else 1), [f"accuracy beside dense attention: {told}"]


def _rank(one: Suggestion) -> tuple[bool, float, str]:
    if one.score is not None:
        return False, -one.score, one.mixer
    return True, _growth(MIXERS[one.mixer]().traits.time), one.mixer


def _growth(time: str) -> float:
    """The exponent of n in a formula of time, roughly: what is unmeasured is ordered by it."""
    plain = time.replace(" ", "")
    if "n²" in plain:
        return 2.0
    if "√n" in plain or "n^1.5" in plain:
        return 1.5
    return 1.1 if "log" in plain else 1.0

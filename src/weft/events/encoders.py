"""Columns as what a model reads: codes of categories, scaled numbers. Fitted on training events.

    categories   0 padding, 1 never seen in training, 2 missing, 3 ... by falling frequency
    numbers      "quantile": √12 (rank − 1/2), rank the share of training values below: variance 1
                 "log": sign(x) log(1 + |x|), less its mean, over its standard deviation
                 "standard": x less its mean, over its standard deviation; NaN stays: missing

An encoder is fitted piece by piece and is a few kilobytes of plain values, which travel with the
weights of a model.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from weft.config import read
from weft.errors import WeftError
from weft.events.columns import EventColumns
from weft.events.pieces import Coded, EventPiece
from weft.events.threads import for_each

PADDING, UNKNOWN, MISSING, FIRST = 0, 1, 2, 3
MOST_CODES = 10_000  # of a category; rarer values are unknown
KNOTS = 257  # of a quantile scale
RESERVOIR = 200_000  # values that quantiles are taken from
LARGEST = 1e4  # of a scaled number, infinite ones too
Scale = Literal["quantile", "log", "standard"]


@dataclass(frozen=True)
class Codes:
    """The values of a category that have a code, most frequent first."""

    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Codes, those of padding, unknown and missing included."""
        return FIRST + len(self.values)

    def encode(self, column: Coded) -> np.ndarray:
        """(rows,) uint16."""
        known = {value: FIRST + place for place, value in enumerate(self.values)}
        table = [known.get(value, UNKNOWN) for value in column.values]
        return np.array([*table, MISSING], dtype=np.uint16)[column.codes]  # -1 reads the last

    def named(self, code: int) -> str:
        """What a code stands for."""
        return (
            ("padding", "never seen", "missing")[code]
            if code < FIRST
            else self.values[code - FIRST]
        )


@dataclass(frozen=True)
class NumberScale:
    """How a number is scaled."""

    scale: Scale
    knots: tuple[float, ...] = ()  # quantile: rising values
    ranks: tuple[float, ...] = ()  # and the share of training values below each, in the middle
    mean: float = 0.0
    deviation: float = 1.0

    def encode(self, values: np.ndarray) -> np.ndarray:
        """(rows,) float32, NaN where missing; infinite values become the largest finite ones."""
        if self.scale == "quantile":
            scaled = np.sqrt(12.0) * (np.interp(values, self.knots, self.ranks) - 0.5)
            scaled[np.isnan(values)] = np.nan
            return scaled.astype(np.float32)
        if self.scale == "log":
            values = np.sign(values) * np.log1p(np.abs(values))
        finite = np.nan_to_num(
            (values - self.mean) / self.deviation, nan=np.nan, posinf=1e4, neginf=-1e4
        )
        return finite.clip(-1e4, 1e4).astype(np.float32)

    def decode(self, scaled: float) -> float:
        """About the value that was encoded: quantiles keep 257 values, and the least of ties."""
        if self.scale == "quantile":
            return float(np.interp(scaled / np.sqrt(12.0) + 0.5, self.ranks, self.knots))
        value = scaled * self.deviation + self.mean
        return float(np.sign(value) * np.expm1(abs(value))) if self.scale == "log" else value


@dataclass(frozen=True)
class Encoders:
    """All columns of a file, as a model reads them."""

    columns: EventColumns
    codes: tuple[Codes, ...]  # of columns.categories
    numbers: tuple[NumberScale, ...]  # of columns.numbers

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each category."""
        return tuple(each.size for each in self.codes)

    def encode(self, piece: EventPiece) -> tuple[np.ndarray, np.ndarray]:
        """Codes (rows, k) uint16 and numbers (rows, m) float32."""
        codes = np.empty((len(piece), len(self.codes)), dtype=np.uint16)
        numbers = np.empty((len(piece), len(self.numbers)), dtype=np.float32)

        def encode(encoder: Codes | NumberScale, column: Any, out: np.ndarray) -> None:
            out[:] = encoder.encode(column)

        given = [piece.categories[name] for name in self.columns.categories]
        given += [piece.numbers[name] for name in self.columns.numbers]
        for_each(encode, (*self.codes, *self.numbers), given, (*codes.T, *numbers.T))
        return codes, numbers

    def plain(self) -> dict[str, Any]:
        """As JSON has it; `encoders_of` reads it back."""
        return json.loads(json.dumps(asdict(self)))

    def text(self) -> str:
        """The same as a text."""
        return json.dumps(asdict(self), ensure_ascii=False)


def encoders_of(given: str | dict[str, Any]) -> Encoders:
    """What `Encoders.text` or `Encoders.plain` wrote."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        return Encoders(
            read(EventColumns, found["columns"]),
            tuple(Codes(tuple(each["values"])) for each in found["codes"]),
            tuple(
                NumberScale(
                    **{**each, "knots": tuple(each["knots"]), "ranks": tuple(each["ranks"])}
                )
                for each in found["numbers"]
            ),
        )
    except (ValueError, KeyError, TypeError) as cause:
        raise WeftError(
            f"the encoders of events are damaged ({cause}); copy the folder of the model again"
        ) from cause


@dataclass
class Fitting:
    """Encoders in the making; `add` the rows of the training period, piece by piece."""

    columns: EventColumns
    scale: Scale = "quantile"
    seed: int = 0
    counts: list[Counter[str]] = field(default_factory=list)
    values: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [Counter() for _ in self.columns.categories]
        self.rng = np.random.Generator(np.random.PCG64(self.seed))
        self.values = [Sample() for _ in self.columns.numbers]

    def add(self, piece: EventPiece, rows: np.ndarray) -> None:
        """The rows (rows,) bool that training may know."""
        for counter, name in zip(self.counts, self.columns.categories, strict=True):
            column = piece.categories[name]
            chosen = column.codes[rows]
            found = np.bincount(chosen[chosen >= 0], minlength=len(column.values))
            counter.update({v: int(n) for v, n in zip(column.values, found, strict=True) if n})
        keys = self.rng.random(int(rows.sum()))  # of rows: one draw serves all columns

        def add(values: Sample, name: str) -> None:
            values.add(piece.numbers[name][rows], keys)

        for_each(add, self.values, self.columns.numbers)

    def done(self) -> Encoders:
        """The encoders."""
        ordered = [
            sorted(each.items(), key=lambda item: (-item[1], item[0])) for each in self.counts
        ]
        return Encoders(
            self.columns,
            tuple(Codes(tuple(value for value, _ in each[:MOST_CODES])) for each in ordered),
            tuple(each.numbers(self.scale) for each in self.values),
        )


class Sample:
    """A uniform sample of all finite values so far: those with the smallest random keys."""

    def __init__(self) -> None:
        self.keys, self.kept = np.empty(0), np.empty(0)

    def add(self, values: np.ndarray, keys: np.ndarray) -> None:
        """Values (rows,) with a random key each."""
        if len(self.keys) == RESERVOIR:  # most of a long file is left at one comparison each
            near = keys < self.keys.max()
            keys, values = keys[near], values[near]
        finite = np.isfinite(values)
        keys, values = keys[finite], values[finite]
        self.keys = np.concatenate((self.keys, keys))
        self.kept = np.concatenate((self.kept, values))
        if len(self.keys) > RESERVOIR:
            chosen = np.argpartition(self.keys, RESERVOIR)[:RESERVOIR]
            self.keys, self.kept = self.keys[chosen], self.kept[chosen]

    def numbers(self, scale: Scale) -> NumberScale:
        values = self.kept if len(self.kept) else np.zeros(1)
        if scale == "quantile":
            steps = np.linspace(0.0, 1.0, KNOTS)
            knots, place = np.unique(np.quantile(values, steps), return_inverse=True)
            ranks = np.bincount(place, weights=steps) / np.bincount(place)  # ties: the middle
            return NumberScale(scale, knots=tuple(knots.tolist()), ranks=tuple(ranks.tolist()))
        if scale == "log":
            values = np.sign(values) * np.log1p(np.abs(values))
        return NumberScale(scale, mean=float(values.mean()), deviation=float(values.std()) or 1.0)

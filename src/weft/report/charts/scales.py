"""From numbers to pixels, and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps low..high onto pixels start..end, linearly or by the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside are clamped."""
        value = min(max(value, self.low), self.high)
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """At least two round numbers within the range."""
        found = _log_ticks(self.low, self.high, most) if self.log else []
        tries = (even_ticks(self.low, self.high, count) for count in range(max(2, most), most + 9))
        return next((ticks for ticks in (found, *tries) if len(ticks) > 1), found)


def domain(
    values: Iterable[float],
    *,
    log: bool = False,
    pad: float = 0.06,
    within: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """A range around the values with padding; `within` limits the padding."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not known:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        room = max((high / low) ** pad, 1.12)
        return low / room, high * room
    room = (high - low) * pad or abs(high) * 0.05 or 0.5
    found = low - room, high + room
    if within and low >= within[0] and high <= within[1]:
        found = max(found[0], within[0]), min(found[1], within[1])
    return found


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return _multiples(low, high, rough, [power * m for m in (1, 2, 2.5, 5, 10)])


def clock_ticks(low: float, high: float, most: int) -> list[float]:
    """Seconds that are round numbers of seconds, minutes or hours."""
    rough = (high - low) / max(1, most - 1)
    if rough < 1:
        return even_ticks(low, high, most)
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    return _multiples(low, high, rough, steps)


def doubling_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of two, evenly chosen."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first, last + 1, max(1, -(-(last - first + 1) // most)))]


def _multiples(low: float, high: float, rough: float, steps: Sequence[float]) -> list[float]:
    step = next((s for s in steps if s >= rough * (1 - 1e-9)), steps[-1])
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    step *= max(1, -(-(last - first) // 40))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{at * step:.14g}") for at in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**d for d in decades for m in mantissas]
        inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside
    return inside[:: -(-len(inside) // most)]


def plain(value: float) -> str:
    """A tick in few characters: 0.25, 4, 1.5k, 16k, 2M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def alike(values: Sequence[float]) -> list[str]:
    """Evenly spaced numbers with equally many decimals: 0.40, 0.45; large ones as `plain`."""
    if any(abs(value) >= 1000 for value in values):
        return [plain(value) for value in values]
    digits = max(len(f"{value:.6g}".partition("e")[0].partition(".")[2]) for value in values)
    small = any("e" in f"{value:.6g}" for value in values)
    return [f"{value:.3g}" if small else f"{value:.{digits}f}" for value in values]


def tokens(value: float) -> str:
    """A length: 512, 4,096, 16K for a round number of 1,024s beyond 10,000."""
    if value >= 10_000 and value % 1024 == 0:
        return f"{value / 1024:.0f}K"
    return f"{value:,.0f}"


def signed(value: float, form: str = "+.3f") -> str:
    """A difference with its sign: +0.012, −0.3."""
    return f"{value:{form}}".replace("-", "−")


def times(value: float) -> str:
    """A ratio: 0.5×, 2×."""
    return f"{value:.3g}×"


def clock(value: float) -> str:
    """Seconds in the unit that reads best: 45 s, 2.5 min, 1.5 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


def thinned(points: Sequence[tuple[float, float]], most: int = 240) -> list[tuple[float, float]]:
    """At most `most` points, evenly chosen, including the last one."""
    if len(points) <= most:
        return list(points)
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]

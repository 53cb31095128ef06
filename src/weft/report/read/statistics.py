"""Means over seeds, and whether two of them differ by more than their spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Student's t, 97.5 % quantile, by degrees of freedom 1 to 10, then at some larger ones.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T_LATER = ((120.0, 1.980), (30.0, 2.042), (20.0, 2.086), (15.0, 2.131))
_NORMAL = 1.960


@dataclass(frozen=True)
class Estimate:
    """The mean of n numbers and their standard deviation (n − 1); None for a single one."""

    mean: float
    std: float | None
    n: int


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Over the known values; None where there are none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Estimate(mean, math.sqrt(variance), len(known))


def differ(a: Estimate, b: Estimate) -> bool | None:
    """Whether two means differ, by Welch's test at 95 %; None where a spread is unknown."""
    if a.std is None or b.std is None:
        return None
    parts = (a.std**2 / a.n, b.std**2 / b.n)
    gap, error = abs(a.mean - b.mean), math.sqrt(sum(parts))
    if error == 0:
        return gap > 0
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (a.n - 1) + parts[1] ** 2 / (b.n - 1))
    return gap > quantile(freedom) * error


def quantile(freedom: float) -> float:
    """Student's t at 97.5 %, for the next smaller tabled degree: never too small."""
    if freedom < 11:
        return _T[max(0, int(freedom + 1e-9) - 1)]
    return next((t for least, t in _T_LATER if freedom >= least), _T[-1])


def wilson(right: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share of `count` trials (Wilson 1927)."""
    if count <= 0:
        return 0.0, 1.0
    z, share = _NORMAL, right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average; near the ends the window shrinks on both sides."""
    half = window // 2
    result = []
    for at in range(len(values)):
        reach = min(half, at, len(values) - 1 - at)
        part = values[at - reach : at + reach + 1]
        result.append(math.fsum(part) / len(part))
    return result


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1 for the smallest; ties share their mean rank."""
    below = [sum(other < value for other in values) for value in values]
    equal = [sum(other == value for other in values) for value in values]
    return [low + (same + 1) / 2 for low, same in zip(below, equal, strict=True)]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where all values of one side are equal."""
    first, second = ranks(a), ranks(b)
    middle = (len(first) + 1) / 2
    product = math.fsum((x - middle) * (y - middle) for x, y in zip(first, second, strict=True))
    squares = [math.fsum((x - middle) ** 2 for x in own) for own in (first, second)]
    return product / math.sqrt(squares[0] * squares[1]) if min(squares) > 0 else 0.0


def spearman_interval(rho: float, n: int) -> tuple[float, float]:
    """Its 95 % interval, by Fisher's transformation with variance (1 + ρ²/2) / (n − 3).

    Bonett, Wright 2000, https://doi.org/10.1007/BF02294183; undefined below n = 4.
    """
    if n < 4:
        return -1.0, 1.0
    if abs(rho) >= 1:
        return rho, rho
    half = _NORMAL * math.sqrt((1 + rho * rho / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)

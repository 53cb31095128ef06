"""Fields of rows, any of which may be missing or not a number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_LARGEST_NUMBER = 1e18  # a larger number is not a measurement
_COUNTS = {
    *("length", "steps", "train_seconds", "steps_per_second", "tokens_per_second", "peak_bytes"),
    *("parameters", "flops_per_token", "seconds_to_target", "step", "seconds"),
    *("span", "layer", "count", "right", "median_s", "step_seconds"),
}


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None: for a missing key, text, NaN and infinity."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def label(row: Mapping[str, Any]) -> str:
    """The short name of a row's mechanism."""
    return str(row.get("label") or row.get("mixer") or "unnamed")


def length(row: Mapping[str, Any]) -> int:
    """Tokens of a row's sequences; 0 where it does not say."""
    return int(number(row, "length") or 0)


def possible(key: str, value: Any) -> Any:
    """The value of a field: nested values as JSON, impossible numbers as None."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < _LARGEST_NUMBER or (key in _COUNTS and value < 0):
            return None
        return value if abs(value) > 1 / _LARGEST_NUMBER else 0
    return value

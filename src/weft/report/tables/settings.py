"""The environment and the settings of a run, as tables of names and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.report.page.document import DataTable, TableCell
from weft.report.read.run_folder import RunFiles

ENVIRONMENT = (
    *("device_name", "threads", "platform", "python", "torch", "cuda", "weft", "commit", "date"),
)
_MEASURED = {
    *("label", "mixer", "length", "seed", "status", "reason", "valid_score", "test_score", "steps"),
    *("train_seconds", "steps_per_second", "tokens_per_second", "peak_bytes", "parameters"),
    *("parameters_ratio", "flops_per_token", "seconds_to_target", "train_score", "dense", "cell"),
    *("loss", "best_step", "span", "target", "unfused"),
}


def facts(pairs: Sequence[tuple[str, Any]]) -> DataTable:
    """Names and values."""
    rows = [
        [TableCell(name, number=False), TableCell(str(value), number=False)]
        for name, value in pairs
    ]
    return DataTable(["name", "value"], rows)


def environment(run: RunFiles) -> list[tuple[str, str]]:
    """The environment: the value that all cells share, or each different one."""
    return [(key.replace("_", " "), shown) for key in ENVIRONMENT if (shown := _values(run, key))]


def settings(run: RunFiles) -> list[tuple[str, str]]:
    """The training settings in the rows, then grid.json, flattened."""
    keys = dict.fromkeys(key for row in run.rows for key in row)
    own = [key for key in keys if key not in _MEASURED and key not in ENVIRONMENT]
    pairs = [(key.replace("_", " "), shown) for key in own if (shown := _values(run, key))]
    return pairs + [(f"grid: {key}", str(value)) for key, value in _grid_settings(run.grid)]


def _grid_settings(grid: dict[str, Any]) -> list[tuple[str, Any]]:
    """The settings that all contenders of a grid share; then those in which they differ."""
    contenders = grid.get("contenders")
    rest = [(k, v) for k, v in flattened(grid) if v not in (None, "", [])]
    if not isinstance(contenders, dict) or len(contenders) < 2:
        return rest
    each = {name: dict(flattened(own, "")) for name, own in contenders.items()}
    first = next(iter(each.values()))
    shared = {k: v for k, v in first.items() if all(own.get(k) == v for own in each.values())}
    own = [(f"{name}: {k}", v) for name, e in each.items() for k, v in e.items() if k not in shared]
    rest = [(k, v) for k, v in rest if not k.startswith("contenders.")]
    return [*rest, *((k, v) for k, v in [*shared.items(), *own] if v not in (None, "", []))]


def _values(run: RunFiles, key: str) -> str:
    found = list(dict.fromkeys(str(row[key]) for row in run.rows if row.get(key) is not None))
    if key == "date" and found:
        return found[0] if len(found) == 1 else f"{min(found)} to {max(found)}"
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return ", ".join(found[:4]) + more


def flattened(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Nested objects as `a.b.c` and a value; lists of plain values stay whole."""
    if isinstance(value, dict):
        parts = [(f"{name}.{key}" if name else str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        parts = [(f"{name}.{at}", inner) for at, inner in enumerate(value)]
    else:
        return [(name, ", ".join(map(str, value)) if isinstance(value, list) else value)]
    return [pair for key, inner in parts for pair in flattened(inner, key)]

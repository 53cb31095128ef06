"""The table of an ablation: one row for each modification, over its seeds.

Early loss is the held-out loss in nats at the last step of the early trainings, mean and standard
deviation over seeds; final loss that of the one longer training. Quality is the task's score on
its test split, of the longer training where there is one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.arena.ablation.ablate import BASE, Ablation
from weft.arena.ablation.published import SOURCE, published
from weft.files import write_bytes
from weft.rows import Row, read

_PLACE = ("task", "task_spec", "data", "metric", "length", "budget_steps", "batch", "lr", "layers")
_MACHINE = ("device", "device_name", "torch", "python", "commit", "date", "weft", "precision")


def write_table(wanted: Ablation, folder: Path) -> list[Row]:
    """Gather the rows of an ablation's folders into RUN/ablation.jsonl, in the recipe's order."""
    early, final = _by_label(folder / "rows.jsonl"), _by_label(folder / "final" / "rows.jsonl")
    speed = {row["label"]: row for row in _read(folder / "speed.jsonl")}
    rows = []
    for own in wanted.modifications:
        cells = early.get(own.name, [])
        longer = final.get(own.name, [])
        row = _row(own, cells, longer, speed.get(own.name, {}))
        rows.append({**row, "steps": wanted.grid().contenders[own.name].training.steps})
    rows = [{**row, "final_steps": wanted.final_steps} for row in rows]
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_bytes(folder / "ablation.jsonl", text.encode())
    return rows


def _row(own: Any, cells: Sequence[Row], longer: Sequence[Row], timed: Row) -> Row:
    done = [row for row in cells if row["status"] == "done"]
    ended = [row for row in longer if row["status"] == "done"]
    losses = [row["loss"] for row in done if row["loss"] is not None]
    first = (done or list(cells) or [{}])[0]
    study = published(own.published) if own.published else None
    return {
        "label": own.name,
        "change": own.change,
        "base": own.name == BASE,
        **{key: first.get(key) for key in (*_PLACE, *_MACHINE)},
        "parameters": first.get("parameters"),
        "parameters_ratio": first.get("parameters_ratio"),
        "flops_per_token": first.get("flops_per_token"),
        "steps_per_second": timed.get("steps_per_second"),
        "peak_bytes": max((row["peak_bytes"] or 0 for row in done), default=None),
        "seeds": len(losses),
        "tried": len(cells),
        "early_loss": statistics.fmean(losses) if losses else None,
        "early_std": statistics.stdev(losses) if len(losses) > 1 else None,
        "final_loss": ended[0]["loss"] if ended else None,
        "quality": _mean(row["test_score"] for row in ended or done),
        "status": next((row["status"] for row in cells if row["status"] != "done"), "done"),
        "reason": next((row["reason"] for row in cells if row["status"] != "done"), None),
        "published": own.published,
        "published_early": study.early if study else None,
        "published_std": study.spread if study else None,
        "published_source": SOURCE if study else None,
    }


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _by_label(path: Path) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in _read(path):
        found.setdefault(row["label"], []).append(row)
    return found


def _read(path: Path) -> list[Row]:
    return read(path) if path.is_file() else []

"""Tables of `weft bench decode`: times relative to dense models and to the floor, and parts."""

from __future__ import annotations

from collections.abc import Sequence

from weft.report.tables.table import TextTable
from weft.rows import Row

_PARTS = "ms_"


def decode_table(rows: Sequence[Row]) -> TextTable:
    """Milliseconds per step, by model and batch; sparse rows relative to the faster dense model."""
    header = ["batch", "case", "weights, cache, output", "ms / step", "", "read", "time / floor"]
    table = TextTable(_title(rows), header)
    for group in _groups(rows):
        for row in group:
            if row["ms"] is not None:
                table.cells.append(_cells(row))
        table.breaks.add(len(table.cells) - 1)
    table.notes = _notes(rows)
    return table


def decode_parts_table(rows: Sequence[Row]) -> TextTable:
    """Where the milliseconds go, for the rows that count."""
    table = TextTable("", ["batch", "case", "ms by part"])
    for row in rows:
        parts = {key.removeprefix(_PARTS): row[key] for key in row if key.startswith(_PARTS)}
        if row["counts"] and parts:
            largest = sorted(parts.items(), key=lambda part: -part[1])
            text = ", ".join(f"{name} {_figure(value)}" for name, value in largest)
            table.cells.append([str(row["batch"]), _name(row), text])
    return table


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """By session; each begins with its dense model, where that could be timed."""
    found: list[list[Row]] = []
    for row in rows:
        key = (row["model"], row["batch"], row["session"])
        before = found[-1][-1] if found else None
        fresh = before is None or key != (before["model"], before["batch"], before["session"])
        if fresh or row["kind"] == "dense":
            found.append([])
        found[-1].append(row)
    return found


def _cells(row: Row) -> list[str]:
    spread = (row["upper_quartile_ms"] - row["lower_quartile_ms"]) / 2 / row["ms"]
    ratio = "dense" if row["kind"] == "dense" else f"{row['ratio']:.3g}×" if row["ratio"] else ""
    known = row["bytes"] is not None
    return [
        str(row["batch"]),
        _name(row),
        f"{row['weights']}, {row['cache']}, {row['output']}" if known else row["path"],
        f"{_figure(row['ms'])} ±{100 * spread:.0f}%",
        ratio if row["counts"] else f"({ratio})",
        f"{_figure(row['bytes'] / 1e6)} MB" if known else "–",
        f"{row['time_over_floor']:.2f}" if known else "–",
    ]


def _figure(value: float) -> str:
    """Three digits without an exponent: 1,520 and 0.0386."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _name(row: Row) -> str:
    return f"{row['model']} {row['case']}"


def _title(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row["ms"] is not None]
    if not found:
        return "nothing was measured"
    row, rates = found[0], [row["bandwidth_gb_s"] for row in found]
    contexts = ", ".join(dict.fromkeys(str(row["context"]) for row in found))
    return (
        f"{row['device_name']}, {row['threads']} threads, {min(rates):.3g} to {max(rates):.3g} "
        f"GB/s, {contexts} tokens in the cache"
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = ["a ratio counts against the faster dense model; those in brackets do not"]
    scaled: dict[tuple[str, int, int], list[str]] = {}
    for row in rows:
        if row["scaled"]:
            batches = scaled.setdefault((row["model"], row["layers_timed"], row["layers"]), [])
            batches.append(str(row["batch"]))
    for (name, timed, layers), batches in scaled.items():
        notes.append(
            f"{name}, batch {', '.join(dict.fromkeys(batches))}: {timed} of {layers} layers timed "
            "and multiplied, the output layer added once"
        )
    failed = dict.fromkeys((row["case"], row["error"]) for row in rows if row["error"])
    return notes + [f"{case}: {reason}" for case, reason in failed]

"""Tables from rows, written as Markdown or for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.rows import Row

FORWARD, BOTH, MEMORY = "forward", "forward+backward", "memory"
BASELINE = "full"


@dataclass
class TextTable:
    """Header and cells as text; `breaks` are the indices of rows after which a section ends."""

    title: str
    header: Sequence[str]
    cells: list[Sequence[str]] = field(default_factory=list)
    breaks: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def bench_tables(rows: Sequence[Row]) -> list[TextTable]:
    """One table for each setting: times at different settings cannot be compared."""
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(_title([row]), []).append(row)
    return [bench_table(own) for own in settings.values()]


def bench_table(rows: Sequence[Row]) -> TextTable:
    """Times and memory of `weft bench`, by length and case, relative to dense attention.

    Where a case was measured more than once, the last row counts.
    """
    rows = [own[-1] for _, own in _grouped(rows, "kind_of_work", "length", "case", "measure")]
    has_memory = any(row["measure"] == MEMORY for row in rows)
    header = ["length", "case", "kernel", FORWARD, "", BOTH, "", *(["memory"] * has_memory)]
    table = TextTable(_title(rows), header)
    for (kind, n), group in _grouped(rows, "kind_of_work", "length"):
        for (case,), own in _grouped(group, "case"):
            by_measure = {row["measure"]: row for row in own}
            cells = [f"{n:,}", _name(case, kind), own[0].get("kernels") or ""]
            for measure in (FORWARD, BOTH):
                cells += _time_cells(by_measure.get(measure))
            if has_memory:
                cells.append(_memory_cell(by_measure.get(MEMORY)))
            table.cells.append(cells)
        table.breaks.add(len(table.cells) - 1)
    table.notes = _notes(rows)
    return table


def to_markdown(table: TextTable) -> str:
    """A GitHub table, its title above and its notes below."""
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append("| " + " | ".join(map(_escaped, table.header)) + " |")
    lines.append("|" + "---|" * len(table.header))
    lines += ["| " + " | ".join(map(_escaped, cells)) + " |" for cells in table.cells]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def to_rich(table: TextTable) -> Any:
    """The same for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made = Table(title=table.title, header_style="bold", title_justify="left")
    for at, name in enumerate(table.header):
        made.add_column(name, justify="left" if at in (1, 2) else "right", no_wrap=at == 1)
    for at, cells in enumerate(table.cells):
        styled = [Text(cell, style=_style(cell)) for cell in cells]
        made.add_row(*styled, end_section=at in table.breaks)
    return Group(made, *(Text(note, style="yellow") for note in table.notes))


def seconds(value: float) -> str:
    """0.00123 -> '1.23 ms'."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def byte_count(value: float) -> str:
    """3 * 2**30 -> '3 GiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def relative(ratio: float) -> str:
    """Time over dense attention's time, in words: 0.25 -> '4× faster'."""
    if 0.995 < ratio < 1.005:
        return "as fast"
    return f"{1 / ratio:.3g}× faster" if ratio < 1 else f"{ratio:.3g}× slower"


def _title(rows: Sequence[Row]) -> str:
    if not rows:
        return "nothing was measured"
    row = rows[0]
    direction = "causal" if row["causal"] else "bidirectional"
    shared = f" that share {row['kv_heads']} of keys" if row.get("kv_heads") else ""
    return (
        f"{row['device_name']}, {row['dtype']}, batch {row['batch']}, "
        f"{row['heads']} heads of {row['head_dim']}{shared}, {direction}"
    )


def _grouped(rows: Iterable[Row], *keys: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """Rows by the values of some keys, in the order of first appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        values = tuple(_kind_of_work(row) if k == "kind_of_work" else row[k] for k in keys)
        found.setdefault(values, []).append(row)
    return list(found.items())


def _kind_of_work(row: Row) -> str:
    """Layers or cores: a rival is a layer, a pattern is a core."""
    return "core" if row["kind"] in ("core", "pattern") else "layer"


def _time_cells(row: Row | None) -> tuple[str, str]:
    if row is None or row.get("median_s") is None:
        return "–", ""
    spread = (row["upper_quartile_s"] - row["lower_quartile_s"]) / 2 / row["median_s"]
    time = f"{seconds(row['median_s'])} ±{100 * spread:.0f}%"
    ratio = row.get("ratio_to_dense")
    if row["case"] == BASELINE:
        return time, "dense"
    return time, "" if ratio is None else relative(ratio)


def _memory_cell(row: Row | None) -> str:
    if row is None or row.get("peak_bytes") is None:
        return "–"
    return byte_count(row["peak_bytes"])


def _name(case: str, kind: str) -> str:
    return case if kind == "layer" else f"{case} [{kind}]"


def _notes(rows: Sequence[Row]) -> list[str]:
    """Why numbers are missing, each reason once with the lengths and measures it holds for."""
    notes, every = [], {row["measure"] for row in rows}
    failed = [row for row in rows if row.get("error")]
    for (kind, case, reason), own in _grouped(failed, "kind_of_work", "case", "error"):
        lengths = ", ".join(dict.fromkeys(f"{row['length']:,}" for row in own))
        measures = dict.fromkeys(row["measure"] for row in own)
        where = "" if every <= set(measures) else f" ({', '.join(measures)})"
        notes.append(f"{_name(case, kind)} at {lengths}{where}: {reason}")
    return notes


def _style(cell: str) -> str:
    return "green" if cell.endswith("faster") else "red" if cell.endswith("slower") else ""


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")

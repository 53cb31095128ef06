"""The page of `weft bench decode`: milliseconds per step of dense and sparse models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from weft.errors import WeftError
from weft.report.charts.dots import Dot, dot_plot
from weft.report.page.document import (
    Block,
    Chart,
    DataTable,
    KeyFigures,
    Paragraph,
    Points,
    Report,
    Section,
    TableCell,
    Tile,
)
from weft.report.page.headline import listed
from weft.report.tables.decode import decode_parts_table, decode_table
from weft.report.tables.table import TextTable
from weft.rows import Row, read

_ENVIRONMENT = ("device_name", "threads", "torch", "weft", "commit", "date")


def decode_page(path: Path) -> Report:
    """The report of a file of rows."""
    rows = read(path) if path.is_file() else []
    if not rows or any(row.get("bench") != "decode" for row in rows):
        raise WeftError(f"{str(path)!r} holds no rows of `weft bench decode --out ROWS.jsonl`")
    made = (_answer(rows), _chart(rows), _tables(rows), _conditions(rows))
    models = list(dict.fromkeys(str(row["model"]).partition("(")[0] for row in rows))
    first = rows[0]
    shown = [listed(models), str(first.get("device_name") or ""), str(first.get("date"))[:10]]
    return Report(
        title="How fast does it decode?",
        subtitle=" · ".join(part for part in shown if part),
        sections=[section for section in made if section],
        footer="Written by weft from the rows of this file. The page needs no network.",
    )


def _counted(rows: Sequence[Row]) -> list[Row]:
    """Rows whose ratio is against the faster dense model."""
    return [row for row in rows if row["counts"] and row["ms"]]


def _answer(rows: Sequence[Row]) -> Section:
    found = [row for row in _counted(rows) if row["kind"] == "sparse" and row["ratio"]]
    if not found:
        text = "No sparse model has a time beside the faster dense one."
        return Section("answer", "The answer", [Paragraph(text, "No comparison.")])
    best, worst = (pick(found, key=lambda row: row["ratio"]) for pick in (max, min))
    dense = best["ms"] * best["ratio"]
    tiles = [
        Tile("most speed-up", f"{best['ratio']:.3g}×", _name(best)),
        Tile("its step", f"{best['ms']:.3g} ms", f"dense: {dense:.3g} ms"),
        Tile("least speed-up", f"{worst['ratio']:.3g}×", _name(worst)),
    ]
    floors = [row for row in found if row.get("time_over_floor")]
    text = "Each sparse model is held against the faster one of the dense models timed in the same "
    points = [Paragraph(f"{text}turns: higher is better for speed-ups, lower for milliseconds.")]
    if floors:
        near = min(floors, key=lambda row: row["time_over_floor"])
        said = f"takes {near['time_over_floor']:.2f} times as long as reading its bytes takes."
        points.append(Paragraph(said, _name(near)))
    return Section("answer", "The answer", [KeyFigures(tiles), Points(points)])


def _chart(rows: Sequence[Row]) -> Section | None:
    found = [row for row in _counted(rows) if row["kind"] != "dense" and row["ratio"]]
    if not found:
        return None
    found = sorted(found, key=lambda row: -row["ratio"])
    colours = {"sparse": "c0"}
    dots = [
        Dot(
            _name(row),
            row["ratio"],
            None,
            colours.get(row["kind"], "c1"),
            f"{_name(row)}: {row['ratio']:.3g}×, {row['ms']:.3g} ms",
        )
        for row in found
    ]
    alt = "speed over the faster dense model"
    caption = "Times as fast as the faster dense model of the same turns; the dashed line is dense."
    draw = cache(lambda width: dot_plot(dots, (1.0, 0.0), "times as fast as dense", width, alt))
    return Section("speed", "Speed-up", [Chart("speed", alt, draw, caption)])


def _name(row: Row) -> str:
    """A case in few words."""
    several = f", batch {row['batch']}" if row["batch"] != 1 else ""
    return f"{row['model']}{several}, {row['case']} {row['weights']}"


def _tables(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [_plain(decode_table(rows))]
    parts = decode_parts_table(rows)
    if parts.cells:
        blocks.append(_plain(parts))
    return Section("table", "Every case", blocks)


def _plain(table: TextTable) -> DataTable:
    """With the case in front: it names the row."""
    at = list(table.header).index("case")
    order = [at, *(place for place in range(len(table.header)) if place != at)]
    words = {"case", "weights, cache, output", "ms by part"}
    header = [table.header[place] or "against dense" for place in order]
    rows = [
        [TableCell(str(cells[p]), number=table.header[p] not in words) for p in order]
        for cells in table.cells
    ]
    return DataTable(header, rows, table.title, notes=table.notes)


def _conditions(rows: Sequence[Row]) -> Section:
    facts = []
    for key in _ENVIRONMENT:
        values = list(dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None))
        shown = values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}" if values else ""
        if shown:
            name = TableCell(key.replace("_", " "), number=False)
            facts.append([name, TableCell(shown, number=False)])
    return Section("conditions", "Measured on", [DataTable(["name", "value"], facts)])

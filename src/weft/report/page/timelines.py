"""What answers about clients rest on: a timeline of each client, its strongest events named."""

from __future__ import annotations

from functools import cache

from weft.report.charts.timeline import TimelineEvent, dated, timeline
from weft.report.page.document import Block, Chart, DataTable, Paragraph, Section, TableCell
from weft.report.page.sections import Material
from weft.rows import Row

NAMED = 6  # events of a client that a table names
MOST_CLIENTS = 6
NEEDED = ("client", "answer", "probability", "day", "influence", "event")


def timelines(m: Material) -> Section | None:
    """The clients of `weft explain`."""
    clients: dict[str, list[Row]] = {}
    for row in m.run.timelines:
        if all(row.get(name) is not None for name in NEEDED):
            clients.setdefault(str(row["client"]), []).append(row)
    if not clients:
        return None
    text = (
        "Bars show by how much the log-odds of the answer fall when the embedding of an event is "
        "replaced by the mean of all: measured, one event after another. What is looked at need "
        "not matter, so attention stands below, where the mechanism has weights."
    )
    blocks: list[Block] = [Paragraph(text)]
    for place, rows in enumerate(list(clients.values())[:MOST_CLIENTS]):
        blocks += _client(rows, place)
    return Section("timelines", "What answers rest on", blocks)


def _client(rows: list[Row], place: int) -> list[Block]:
    """A sentence, the drawing and a table."""
    strongest = sorted(range(len(rows)), key=lambda at: -abs(rows[at]["influence"]))[:NAMED]
    numbers = {at: number for number, at in enumerate(sorted(strongest), start=1)}
    events = [_event(row, numbers.get(at)) for at, row in enumerate(rows)]
    name, answer = str(rows[0]["client"]), str(rows[0]["answer"])
    label = rows[0].get("label")
    known = f"; it was {str(label)!r}" if label is not None else ""
    said = f"{rows[0]['probability']:.1%} for {answer!r}{known}. {len(rows):,} events were read."
    alt = f"influence of the events of client {name} on the answer {answer}"
    draw = cache(lambda width: timeline(events, answer, width, alt))
    cells = [_named(events[at], str(rows[at]["event"])) for at in sorted(strongest)]
    return [
        Paragraph(said, f"Client {name}:"),
        Chart(f"timeline-{place + 1}", alt, draw),
        DataTable(("", "when", "influence", "event"), cells),
    ]


def _event(row: Row, number: int | None) -> TimelineEvent:
    hint = f"{dated(row['day'])}: {row['event']}"
    return TimelineEvent(row["day"], row["influence"], row.get("attended"), hint, number)


def _named(event: TimelineEvent, what: str) -> list[TableCell]:
    return [
        TableCell(str(event.number)),
        TableCell(dated(event.day), number=False),
        TableCell(f"{event.influence:+.3f}"),
        TableCell(what, number=False),
    ]

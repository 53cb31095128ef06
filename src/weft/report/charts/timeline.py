"""A client's events over time: how much an answer rests on each, and how much it was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from weft.report.charts.scales import Scale
from weft.report.charts.svg import clean, drawing, path, tag, text

UPPER, LOWER = 150.0, 44.0  # pixels of the two panels
_TOP, _GAP, _BOTTOM, _LEFT, _RIGHT = 26.0, 30.0, 30.0, 12.0, 12.0
FIRST_DATE = 3650.0  # days before 1980 are counted, not dated


@dataclass(frozen=True)
class TimelineEvent:
    """One event of a client."""

    day: float  # since 1970
    influence: float
    attended: float | None
    hint: str
    number: int | None = None  # of those that are named below the drawing


def timeline(events: Sequence[TimelineEvent], answer: str, width: int, alt: str) -> str:
    """Influence above, attention below, on one axis of time."""
    days = [each.day for each in events]
    room = max(days) - min(days) or 1.0
    x = Scale(min(days) - 0.01 * room, max(days) + 0.01 * room, _LEFT, width - _RIGHT)
    looked = any(each.attended is not None for each in events)
    middle, bottom = _TOP + UPPER / 2, _TOP + UPPER
    end = bottom + _GAP + LOWER if looked else bottom
    parts = [
        _dates(x, end),
        _title(_TOP - 10, f"influence: above the line for {answer!r}, below it against"),
    ]
    parts += [path([(x.start, middle), (x.end, middle)], class_="axis")]
    parts += _influences(events, x, middle)
    if looked:
        parts += [_title(bottom + _GAP - 8, "attention, mean of layers, heads and queries")]
        parts += _looks(events, x, end)
    return drawing("".join(parts), width, end + _BOTTOM, alt)


def _influences(events: Sequence[TimelineEvent], x: Scale, middle: float) -> list[str]:
    """Bars from the middle, the largest half a panel long; numbers at those that are named."""
    largest = max(abs(each.influence) for each in events) or 1.0
    bars, names = [], []
    for each in events:
        length = each.influence / largest * (UPPER / 2 - 12)
        tip = middle - length
        colour = "c1" if length > 0 else "c0"
        hint = tag("title", clean(each.hint))
        around = path([(x(each.day), middle), (x(each.day), tip)], class_="line")
        bars.append(tag("g", hint + around, class_=colour))
        if each.number is not None:
            y = tip - 4 if length > 0 else tip + 12
            shown = {"class_": "label halo", "text_anchor": "middle"}
            names.append(text(x(each.day), y, str(each.number), **shown))
    return bars + names


def _looks(events: Sequence[TimelineEvent], x: Scale, end: float) -> list[str]:
    """Bars from the lower edge, the largest a panel high."""
    largest = max(each.attended or 0.0 for each in events) or 1.0
    bars = [
        path(
            [(x(e.day), end), (x(e.day), end - (e.attended or 0.0) / largest * LOWER)],
            class_="line",
        )
        for e in events
    ]
    return [
        tag("g", "".join(bars), class_="dense"),
        path([(x.start, end), (x.end, end)], class_="axis"),
    ]


def _title(y: float, content: str) -> str:
    return text(_LEFT, y, content, class_="name")


def _dates(x: Scale, end: float) -> str:
    parts = []
    for day in x.ticks(max(2, int((x.end - x.start) / 130))):
        parts.append(path([(x(day), _TOP), (x(day), end)], class_="grid"))
        at = {"class_": "tick", "text_anchor": "middle"}
        near = min(max(x(day), x.start + 30), x.end - 30)
        parts.append(text(near, end + 18, dated(day), **at))
    return "".join(parts)


def dated(day: float) -> str:
    """A day as people write it."""
    if not FIRST_DATE <= day < FIRST_DATE * 100:
        return f"day {day:,.0f}"
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")

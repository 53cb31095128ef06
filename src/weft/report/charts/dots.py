"""A dot plot: names down the side, one dot each with a bar for its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.report.charts.palette import Look
from weft.report.charts.panels import SMALL
from weft.report.charts.scales import Scale, alike, domain
from weft.report.charts.svg import clean, drawing, mark, path, shortened, tag, text, width_of

ROW = 21.0  # pixels per row
MOST_LEFT = 0.45  # of the width that names may take
PHONE = 500  # pixels: on narrower drawings long names stand above their dots
_TOP, _BOTTOM, _RIGHT = 8.0, 46.0, 16.0


@dataclass(frozen=True)
class Dot:
    """One row of the plot."""

    label: str
    value: float
    spread: float | None
    colour: str  # the class that sets it; "noise" is drawn hollow
    hint: str = ""


def dot_plot(
    dots: Sequence[Dot], band: tuple[float, float] | None, name: str, width: int, alt: str
) -> str:
    """All dots in the order given; `band` is a value to compare with, and its half width."""
    wanted = max(width_of(dot.label, 12) for dot in dots) + 14.0
    above = wanted > MOST_LEFT * width and width < PHONE  # names above their dots
    left = 8.0 if above else min(wanted, MOST_LEFT * width)
    each = 2 * ROW if above else ROW
    bottom = _TOP + each * len(dots)
    reach = [(dot.value - (dot.spread or 0), dot.value + (dot.spread or 0)) for dot in dots]
    if band:
        reach.append((band[0] - band[1], band[0] + band[1]))
    low, high = domain([edge for pair in reach for edge in pair])
    x = Scale(low, high, left, width - _RIGHT)
    parts = [_grid(x, bottom, name), _band(x, bottom, band) if band else ""]
    for at, dot in enumerate(dots):
        y = _TOP + each * (at + 1) - ROW / 2
        name_at = (0.0, y - ROW / 2 - 2, "start") if above else (left - 8, y + 4, "end")
        parts.append(_row(dot, x, y, name_at, width - 24 if above else left - 10))
    return drawing("".join(parts), width, bottom + _BOTTOM, alt)


def _grid(x: Scale, bottom: float, name: str) -> str:
    parts = []
    values = x.ticks(max(2, int((x.end - x.start) / 70)))
    for value, shown in zip(values, alike(values), strict=True):
        parts.append(path([(x(value), _TOP), (x(value), bottom)], class_="grid"))
        parts.append(text(x(value), bottom + 16, shown, class_="tick", text_anchor="middle"))
    parts.append(path([(x.start, bottom), (x.end, bottom)], class_="axis"))
    shown = shortened(name, x.end - x.start, SMALL)
    return "".join(parts) + text(x.end, bottom + 34, shown, class_="name", text_anchor="end")


def _band(x: Scale, bottom: float, band: tuple[float, float]) -> str:
    low, high = x(band[0] - band[1]), x(band[0] + band[1])
    corners = [(low, _TOP), (high, _TOP), (high, bottom), (low, bottom)]
    around = path(corners, closed=True, class_="band")
    line = path([(x(band[0]), _TOP), (x(band[0]), bottom)], class_="rule")
    return tag("g", around + line, class_="dense")


def _row(dot: Dot, x: Scale, y: float, name_at: tuple[float, float, str], room: float) -> str:
    shown = shortened(dot.label, room, 12)
    parts = [tag("title", clean(dot.hint or dot.label))]
    parts.append(text(*name_at[:2], shown, class_="entry halo", text_anchor=name_at[2]))
    if dot.spread:
        low, high = x(dot.value - dot.spread), x(dot.value + dot.spread)
        ends = [(low, y - 3), (low, y + 3), (low, y), (high, y), (high, y - 3), (high, y + 3)]
        parts.append(path(ends, class_="bar"))
    if dot.colour == "noise":
        parts.append(tag("circle", class_="keyhole", cx=x(dot.value), cy=y, r=4.0))
    else:
        shape = "diamond" if dot.colour == "dense" else "circle"
        parts.append(mark(Look(dot.colour, shape), x(dot.value), y, 4.4))
    colour = "dense" if dot.colour == "noise" else dot.colour
    return tag("g", "".join(parts), class_=f"series {colour}", data_series=dot.label)

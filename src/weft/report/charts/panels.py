"""Line charts: panels of axes and lines in one drawing, with one legend for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.report.charts.palette import Look
from weft.report.charts.scales import Scale, alike, domain, plain, thinned
from weft.report.charts.svg import clean, drawing, mark, path, shortened, tag, text, width_of

Point = tuple[float, float]
LEFT, RIGHT, TOP, BOTTOM = 50.0, 14.0, 30.0, 42.0
SMALL = 11.5  # font size at the axes, pixels
HEADING = 15.0  # of headings: bold letters of 13 are this wide
_ROW = 22.0  # of the legend


@dataclass(frozen=True)
class ChartAxis:
    """What one axis measures and how it is written."""

    name: str
    log: bool = False
    form: Callable[[float], str] = plain
    ticks: Sequence[float] | Callable[[float, float, int], Sequence[float]] | None = None
    within: tuple[float, float] | None = None  # limits of the padding around the values
    range: tuple[float, float] | None = None  # instead of the range of the values


@dataclass(frozen=True)
class Line:
    """One line; `spread` is (x, low, high), drawn as a band, or as bars with `bars`."""

    label: str
    look: Look
    points: Sequence[Point]
    spread: Sequence[tuple[float, float, float]] = ()
    bars: bool = False
    marks: str = "end"  # "all", "end" or "none"
    style: str = "line"  # "line", "thin" or "raw"
    part_of: str = ""  # the mechanism, where the label is longer than its name


@dataclass(frozen=True)
class Panel:
    """Axes with lines, straight rules (y, name), and crosses where there is no number."""

    title: str
    x: ChartAxis
    y: ChartAxis
    lines: Sequence[Line]
    rules: Sequence[tuple[float, str]] = ()
    crosses: Sequence[tuple[float, Look, str]] = field(default=())


def figure(
    panels: Sequence[Panel],
    width: int,
    alt: str,
    *,
    columns: int = 2,
    least: tuple[float, float] = (240.0, 200.0),
    ratio: float = 0.66,
    legend: Sequence[tuple[str, Look]] = (),
) -> str:
    """All panels in a grid, as many across as fit, with the legend below.

    `least` is the smallest width and height of a panel.
    """
    across = max(1, min(columns, len(panels), int(width // least[0])))
    own_width = (width - 16.0 * (across - 1)) / across
    own_height = min(max(ratio * own_width, least[1]), 340.0)
    drawn = [draw_panel(panel, own_width, own_height) for panel in panels]
    content, height = in_grid(drawn, across, own_width, own_height)
    below, rows = draw_legend(legend, width)
    content += tag("g", below, transform=f"translate(0 {height + 6:.1f})") if below else ""
    return drawing(content, width, height + rows + 6, alt)


def in_grid(drawn: Sequence[str], across: int, width: float, height: float) -> tuple[str, float]:
    """Drawings of one size, `across` in a row, with gaps; and how high they are together."""
    parts = []
    for at, content in enumerate(drawn):
        x, y = at % across * (width + 16.0), at // across * (height + 12.0)
        parts.append(tag("g", content, transform=f"translate({x:.1f} {y:.1f})"))
    return "".join(parts), -(-len(drawn) // across) * (height + 12.0)


def draw_panel(panel: Panel, width: float, height: float) -> str:
    """One panel with its axes."""
    x, y = scales(panel, width, height)
    parts = [text(0, 14, shortened(panel.title, width, HEADING), class_="heading")]
    parts.append(axes(panel.x, panel.y, x, y))
    for value, name in panel.rules:
        if y.low <= value <= y.high:
            parts.append(rule(y(value), x.start, x.end, name))
    for line in sorted(panel.lines, key=lambda line: line.style != "raw"):
        parts.append(_line(line, x, y))
    beside: dict[float, int] = {}
    for at, look, hint in panel.crosses:
        beside[at] = beside.get(at, -1) + 1  # crosses at one position are drawn next to each other
        cross = mark(Look(look.colour, "cross"), x(at) - 13 * beside[at], y.end - 4, 4.5, hint)
        parts.append(tag("g", cross, class_=f"series {look.colour}"))
    return "".join(parts)


def scales(panel: Panel, width: float, height: float) -> tuple[Scale, Scale]:
    """The scales that hold all points of a panel except raw ones."""
    shown = [line for line in panel.lines if line.style != "raw"]
    xs = [p[0] for line in panel.lines for p in line.points] + [c[0] for c in panel.crosses]
    ys = [p[1] for line in shown for p in line.points]
    ys += [v for line in shown for s in line.spread for v in s[1:]]
    ys += [value for value, _ in panel.rules]
    low, high = panel.x.range or domain(xs, log=panel.x.log, pad=0.02)
    across = Scale(low, high, LEFT, width - RIGHT, panel.x.log)
    low, high = panel.y.range or domain(ys, log=panel.y.log, within=panel.y.within)
    return across, Scale(low, high, height - BOTTOM, TOP, panel.y.log)


def axes(x_axis: ChartAxis, y_axis: ChartAxis, x: Scale, y: Scale) -> str:
    """Grid, numbers and names of both axes."""
    parts = []
    top, bottom = min(y.start, y.end), max(y.start, y.end)
    for value, shown in _ticks(y_axis, y, max(3, int((bottom - top) / 34))):
        if y.low <= value <= y.high:
            parts.append(path([(x.start, y(value)), (x.end, y(value))], class_="grid"))
            parts.append(text(x.start - 7, y(value) + 4, shown, class_="tick", text_anchor="end"))
    last = -1e9
    for value, shown in _ticks(x_axis, x, max(2, int((x.end - x.start) / 62))):
        at = x(value)
        half = width_of(shown, SMALL) / 2
        if x.low <= value <= x.high and at - half > last + 6:
            parts.append(path([(at, bottom), (at, bottom + 4)], class_="axis"))
            parts.append(text(at, bottom + 17, shown, class_="tick", text_anchor="middle"))
            last = at + half
    parts.append(path([(x.start, bottom), (x.end, bottom)], class_="axis"))
    name = shortened(x_axis.name, x.end - x.start + 40, SMALL)
    parts.append(text(x.end, bottom + 34, name, class_="name", text_anchor="end"))
    return "".join(parts)


def _ticks(axis: ChartAxis, scale: Scale, most: int) -> list[tuple[float, str]]:
    """The axis's own ticks, or at least two round numbers; each with its text."""
    if isinstance(axis.ticks, Sequence):
        return [(value, axis.form(value)) for value in axis.ticks]
    values: Sequence[float] = ()
    if axis.ticks:
        tries = (axis.ticks(scale.low, scale.high, count) for count in range(most, most + 4))
        values = next((found for found in tries if len(found) > 1), ())
    values = values or scale.ticks(most)
    texts = alike(values) if axis.form is plain and not axis.log else map(axis.form, values)
    return list(zip(values, texts, strict=True))


def rule(y: float, left: float, right: float, name: str) -> str:
    """A dashed line across, with its name above its right end."""
    shown = shortened(name, right - left, SMALL)
    line = path([(left, y), (right, y)], class_="rule")
    return line + text(right - 2, y - 5, shown, class_="tick halo", text_anchor="end")


def _line(line: Line, x: Scale, y: Scale) -> str:
    points = [(x(px), y(py)) for px, py in thinned(line.points)]
    if not points:
        return ""
    parts = [tag("title", clean(line.label))]
    if line.spread and line.bars:
        parts += [_bar(x(at), y(low), y(high)) for at, low, high in line.spread]
    elif line.spread:
        upper = [(x(at), y(high)) for at, _, high in line.spread]
        lower = [(x(at), y(low)) for at, low, _ in line.spread]
        parts.append(path([*upper, *reversed(lower)], closed=True, class_="band"))
    if len(points) > 1:
        dash = line.look.dash if line.style == "line" else None
        parts.append(path(points, class_=line.style, stroke_dasharray=dash))
    shown = {"all": line.points, "end": line.points[-1:], "none": []}[line.marks]
    for px, py in shown:
        parts.append(mark(line.look, x(px), y(py), 3.6, f"{line.label}: {py:.4g} at {px:.6g}"))
    series = line.part_of or line.label
    return tag("g", "".join(parts), class_=f"series {line.look.colour}", data_series=series)


def _bar(x: float, low: float, high: float) -> str:
    ends = [(x - 3, low), (x + 3, low), (x, low), (x, high), (x - 3, high), (x + 3, high)]
    return path(ends, class_="bar")


def draw_legend(entries: Sequence[tuple[str, Look]], width: float) -> tuple[str, float]:
    """Marks and names in rows, and their height."""
    parts, x, y = [], 0.0, 0.0
    for label, look in entries:
        shown = shortened(label, min(width - 40, 300), 12)
        room = 34 + width_of(shown, 12) + 16
        if x and x + room > width:
            x, y = 0.0, y + _ROW
        sample = path([(0, 8), (26, 8)], class_="line", stroke_dasharray=look.dash)
        sample += mark(look, 13, 8) + text(33, 12, shown, class_="entry")
        sample += tag("title", clean(label))
        place = f"translate({x:.1f} {y:.1f})"
        group = {"class_": f"series key {look.colour}", "data_series": label, "transform": place}
        parts.append(tag("g", sample, **group))
        x += room
    return "".join(parts), (y + _ROW if entries else 0.0)

"""The bubble chart: quality up, speed to the right, the area of a circle is its memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.report.charts.labels import Box, Circle, body, place
from weft.report.charts.palette import Look
from weft.report.charts.panels import LEFT, SMALL, ChartAxis, axes, draw_legend
from weft.report.charts.scales import Scale, domain, plain, times
from weft.report.charts.svg import clean, drawing, mark, path, shortened, tag, text, width_of
from weft.report.read.summary import Summaries, Summary
from weft.report.tables.table import byte_count

_LETTERS = 12.5


def drawable(summaries: Sequence[Summary]) -> list[Summary]:
    """Those that have a score and a speed."""
    return [s for s in summaries if s.score and s.speed and s.speed.mean > 0]


def bubbles(found: Summaries, n: int, looks: dict[str, Look], width: int) -> str:
    """The chart of one length, for a width in pixels."""
    shown = drawable(found.at(n))
    height = min(max(0.58 * width, 340.0), 480.0)
    largest = (36.0 if width > 500 else 24.0) * min(1.0, math.sqrt(12 / len(shown)))
    relative = all(s.speed_ratio for s in shown)
    x, y = _scales(found, shown, relative, width, height, largest)
    name = "speed relative to dense (log)" if relative else "steps per second (log)"
    parts = [axes(ChartAxis(f"{name} →", form=times if relative else plain), ChartAxis(""), x, y)]
    turned = ", axis reversed" if found.lower_is_better else ""
    parts.append(text(0, 14, f"↑ {found.metric} ({found.split}{turned})", class_="name"))
    circles = [_circle(s, x, y, relative, _radius(s, shown, largest)) for s in shown]
    drawn, taken = _rule(found.best_rule(n), circles, x, y)
    parts.append(drawn)
    frame = Box(x.start + 2, 22, x.end - x.start - 4, height - 66)
    bars = [bar for s, c in zip(shown, circles, strict=True) for bar in _bars(s, c, x, y, relative)]
    places = place(circles, frame, taken, bars)
    for s, circle in sorted(zip(shown, circles, strict=True), key=lambda pair: -pair[1].radius):
        parts.append(_bubble(s, circle, x, y, relative, looks[s.label], found.metric))
    for s, circle, box in zip(shown, circles, places, strict=True):
        parts.append(_name(s, circle, box) if box else "")
    parts.append(_key(shown, x, height))
    unnamed = [s for s, box in zip(shown, places, strict=True) if box is None]
    below, rows = draw_legend([(s.label, looks[s.label]) for s in unnamed], width)
    height += 46
    parts.append(tag("g", below, transform=f"translate(0 {height + 6:.1f})") if below else "")
    return drawing("".join(parts), width, height + rows, f"{found.metric} against speed")


def _scales(
    found: Summaries,
    shown: Sequence[Summary],
    relative: bool,
    width: int,
    height: float,
    largest: float,
) -> tuple[Scale, Scale]:
    speeds = [end for s in shown for end in _speed_spread(s, relative)]
    low, high = domain([*speeds, *([1.0] if relative else [])], log=True, pad=0.02)
    room = largest + 8  # so that a circle at the border is not cut
    start, end = LEFT, width - 10.0
    share = room / max(end - start - 2 * room, 1.0)
    stretch = (high / low) ** share
    x = Scale(low / stretch, high * stretch, start, end, log=True)
    scores = [v for s in shown if s.score for v in _spread(s)]
    rules = [best[1]] if (best := found.best_rule(shown[0].length)) else []
    low, high = domain([*scores, *rules], pad=0.04)
    top, bottom = 26.0, height - 42.0
    share = room / max(bottom - top - 2 * room, 1.0) * (high - low)
    if found.lower_is_better:
        return x, Scale(low - share, high + share, top, bottom)
    return x, Scale(low - share, high + share, bottom, top)


def _rule(
    best_rule: tuple[str, float] | None, circles: Sequence[Circle], x: Scale, y: Scale
) -> tuple[str, list[Box]]:
    """The best trivial rule as a line, labelled where the label covers the least."""
    if not best_rule:
        return "", []
    at = y(best_rule[1])
    name = shortened(f"trivial rule: {best_rule[0]}", x.end - x.start, SMALL)
    wide = width_of(name, SMALL)
    places = [
        Box(x.end - 2 - wide - (x.end - x.start - wide - 4) * step / 16, top, wide, 15)
        for step in range(17)
        for top in (at - 18, at + 3)
    ]
    best = min(places, key=lambda box: sum(box.shared(body(c)) for c in circles))
    line = path([(x.start, at), (x.end, at)], class_="rule")
    middle = best.x + wide / 2
    words = text(middle, best.y + 12, name, class_="tick halo", text_anchor="middle")
    return line + words, [best]


def _speed(s: Summary, relative: bool) -> float:
    return s.speed_ratio if relative and s.speed_ratio else s.speed.mean if s.speed else 1.0


def _speed_spread(s: Summary, relative: bool) -> tuple[float, float]:
    """One standard deviation to both sides; the lower end is at least a tenth, for the log axis."""
    assert s.speed
    share = min((s.speed.std or 0.0) / s.speed.mean, 0.9)
    return _speed(s, relative) * (1 - share), _speed(s, relative) * (1 + share)


def _spread(s: Summary) -> tuple[float, float]:
    assert s.score
    return s.score.mean - (s.score.std or 0.0), s.score.mean + (s.score.std or 0.0)


def _radius(s: Summary, shown: Sequence[Summary], largest: float) -> float:
    most = max((o.memory.mean for o in shown if o.memory), default=0.0)
    return max(3.0, largest * math.sqrt(s.memory.mean / most)) if s.memory and most else 3.0


def _circle(s: Summary, x: Scale, y: Scale, relative: bool, radius: float) -> Circle:
    assert s.score
    name = shortened(s.label, 170, _LETTERS)
    wide = width_of(name, _LETTERS)
    return Circle(x(_speed(s, relative)), y(s.score.mean), radius, wide, _LETTERS + 3)


def _bubble(
    s: Summary, c: Circle, x: Scale, y: Scale, relative: bool, look: Look, metric: str
) -> str:
    assert s.score
    low, high = _spread(s)
    spread = f" ± {s.score.std:.3f}" if s.score.std is not None else ""
    memory = f", {byte_count(s.memory.mean)}" if s.memory else ", memory unknown"
    speed = f"{_speed(s, relative):.3g}{'× dense speed' if relative else ' steps/s'}"
    hint = f"{s.label}: {metric} {s.score.mean:.3f}{spread}, {speed}{memory}"
    parts = [tag("title", clean(hint))]
    parts.append(tag("circle", class_="bubble", cx=c.x, cy=c.y, r=c.radius))
    if s.score.std:
        parts.append(path([(c.x, y(low)), (c.x, y(high))], class_="bar"))
    if s.speed and s.speed.std:
        ends = _speed_spread(s, relative)
        parts.append(path([(x(ends[0]), c.y), (x(ends[1]), c.y)], class_="bar"))
    parts.append(mark(look, c.x, c.y, 4.0))
    return tag("g", "".join(parts), class_=f"series {look.colour}", data_series=s.label)


def _bars(s: Summary, c: Circle, x: Scale, y: Scale, relative: bool) -> list[Box]:
    """The error bars, as boxes that names avoid."""
    left, right = (x(end) for end in _speed_spread(s, relative))
    top, bottom = sorted(y(end) for end in _spread(s))
    return [Box(left, c.y - 1, right - left, 2), Box(c.x - 1, top, 2, bottom - top)]


def _name(s: Summary, c: Circle, box: Box) -> str:
    """The name, with a line to its circle where that is not near."""
    near = min(max(c.x, box.x), box.x + box.width), min(max(c.y, box.y), box.y + box.height)
    away = math.hypot(near[0] - c.x, near[1] - c.y)
    tie = ""
    if away > c.radius + 8:
        part = c.radius / away
        edge = c.x + (near[0] - c.x) * part, c.y + (near[1] - c.y) * part
        tie = path([edge, near], class_="tie")
    shown = shortened(s.label, 170, _LETTERS)
    # Letters are a little narrower than their box; the text is centred in it.
    middle = box.x + box.width / 2
    label = text(middle, box.y + _LETTERS - 1, shown, class_="label halo", text_anchor="middle")
    return tag("g", tie + label, class_="series", data_series=s.label)


def _key(shown: Sequence[Summary], x: Scale, height: float) -> str:
    """What the areas mean: the smallest and the largest memory of those drawn."""
    known = [s.memory.mean for s in shown if s.memory]
    if not known:
        return text(x.start, height + 30, "memory was not measured", class_="tick")
    least, most = byte_count(min(known)), byte_count(max(known))
    size = most if least == most else f"{least} to {most}"
    notes = (
        f"area = peak memory, {size}; bars = ± standard deviation",
        f"area = peak memory, {size}",
        f"memory {size}",
    )
    note = next((n for n in notes if width_of(n, SMALL) <= x.end - x.start), notes[-1])
    return text(x.start, height + 28, note, class_="tick")

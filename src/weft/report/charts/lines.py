"""Charts over lengths, groups of examples, and attention spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.metrics import metric
from weft.report.charts.palette import Look
from weft.report.charts.panels import HEADING, SMALL, ChartAxis, Line, Panel, axes, figure, in_grid
from weft.report.charts.scales import Scale, domain, doubling_ticks, plain, tokens
from weft.report.charts.svg import clean, drawing, path, shortened, tag, text, width_of
from weft.report.read.fields import label, length, number
from weft.report.read.run_folder import RunFiles
from weft.report.read.statistics import Estimate, wilson
from weft.report.read.summary import Summaries, Summary
from weft.report.tables.table import byte_count
from weft.rows import Row

BINS = 16
Measure = Callable[[Summary], Estimate | None]


def scaling(found: Summaries, looks: dict[str, Look], width: int) -> str:
    """Speed, memory and score against length; a cross where a cell ended without a number."""
    across = ChartAxis(
        "tokens (log)", log=True, form=tokens, ticks=[float(n) for n in found.lengths]
    )
    bounds = (0.0, 1.0) if metric(found.metric).share else None
    measures: tuple[tuple[str, Measure, ChartAxis], ...] = (
        ("tokens per second", lambda s: s.tokens, ChartAxis("", log=True)),
        (
            "peak memory",
            lambda s: s.memory,
            ChartAxis("", log=True, form=byte_count, ticks=doubling_ticks),
        ),
        (f"{found.split} {found.metric}", lambda s: s.score, ChartAxis("", within=bounds)),
    )
    panels = []
    for title, pick, axis in measures:
        lines = [_over_lengths(found, name, pick, looks[name]) for name in found.labels]
        lines = [line for line in lines if line.points]
        if lines:
            shown = title if not axis.log else f"{title} (log)"
            panels.append(Panel(shown, across, axis, lines, crosses=_crosses(found, looks, pick)))
    legend = [(name, looks[name]) for name in found.labels]
    return figure(
        panels, width, "speed, memory and score over length", columns=3, ratio=0.9, legend=legend
    )


def _over_lengths(found: Summaries, name: str, pick: Measure, look: Look) -> Line:
    own = sorted((s for s in found.summaries if s.label == name), key=lambda s: s.length)
    known = [(s, value) for s in own if (value := pick(s))]
    points = [(float(s.length), value.mean) for s, value in known if value.mean > 0]
    spread = [
        (float(s.length), value.mean - value.std, value.mean + value.std)
        for s, value in known
        if value.std and value.mean > value.std
    ]
    return Line(name, look, points, spread=spread, bars=True, marks="all")


def _crosses(
    found: Summaries, looks: dict[str, Look], pick: Measure
) -> list[tuple[float, Look, str]]:
    failed = [s for s in found.summaries if s.statuses and not pick(s)]
    return [
        (
            float(s.length),
            looks[s.label],
            f"{s.label} at {s.length:,}: {', '.join(set(s.statuses))}",
        )
        for s in failed
    ]


def group_lines(run: RunFiles, n: int) -> dict[str, dict[str, tuple[float, float]]]:
    """By mechanism and group: the numbers of right answers and of all answers, over seeds."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for row in run.groups:
        count, right, score = (number(row, key) for key in ("count", "right", "score"))
        if length(row) not in (0, n) or not count:
            continue
        if right is None and score is not None:
            right = score * count
        if right is None:
            continue
        right = min(max(right, 0.0), count)
        own = found.setdefault(label(row), {})
        before = own.get(str(row.get("group")), (0.0, 0.0))
        own[str(row.get("group"))] = before[0] + right, before[1] + count
    return found


def by_group(run: RunFiles, found: Summaries, n: int, looks: dict[str, Look], width: int) -> str:
    """Accuracy by group with binomial intervals: the curve of 'lost in the middle'."""
    lines, names = [], list(dict.fromkeys(g for own in group_lines(run, n).values() for g in own))
    found_lines = {name: own for name, own in group_lines(run, n).items() if name in looks}
    for turn, (name, own) in enumerate(found_lines.items()):
        aside = 0.03 * (turn - (len(found_lines) - 1) / 2)  # bars are drawn next to each other
        there = [(names.index(g) + aside, *own[g]) for g in names if g in own]
        points = [(at, right / count) for at, right, count in there]
        spread = [(at, *wilson(right, count)) for at, right, count in there]
        lines.append(Line(name, looks[name], points, spread=spread, bars=True, marks="all"))

    def form(at: float) -> str:
        return names[round(at)] if 0 <= round(at) < len(names) else ""

    across = ChartAxis(
        "group", form=form, ticks=[*map(float, range(len(names)))], range=(-0.3, len(names) - 0.7)
    )
    rules = [(best[1], f"trivial rule: {best[0]}")] if (best := found.best_rule(n)) else []
    panel = Panel("accuracy by group", across, ChartAxis("", within=(0.0, 1.0)), lines, rules)
    legend = [(line.label, line.look) for line in lines]
    return figure(
        [panel], width, "accuracy by group", ratio=0.5, least=(240.0, 260.0), legend=legend
    )


def span_rows(run: RunFiles, n: int) -> dict[str, list[Row]]:
    """Rows with a span, by mechanism."""
    found: dict[str, list[Row]] = {}
    for row in run.spans:
        if length(row) in (0, n) and number(row, "span") is not None:
            found.setdefault(label(row), []).append(row)
    return found


def spans(run: RunFiles, found: Summaries, n: int, looks: dict[str, Look], width: int) -> str:
    """Per mechanism, how many heads need which span, stacked by layer."""
    rows = span_rows(run, n)
    names = [name for name in found.labels if name in rows]
    most = max(number(row, "span") or 0.0 for own in rows.values() for row in own) or 1.0
    across = max(1, min(3, len(names), width // 230))
    wide, high = (width - 16.0 * (across - 1)) / across, 150.0
    drawn = [_histogram(name, rows[name], looks[name], most, wide, high) for name in names]
    content, height = in_grid(drawn, across, wide, high)
    return drawing(content, width, height, "required attention span of heads")


def _histogram(
    name: str, rows: Sequence[Row], look: Look, most: float, width: float, height: float
) -> str:
    layers = sorted({number(row, "layer") or 0.0 for row in rows})
    bins = [dict.fromkeys(layers, 0) for _ in range(BINS)]
    for row in rows:
        at = min(BINS - 1, int((number(row, "span") or 0.0) / most * BINS))
        bins[at][number(row, "layer") or 0.0] += 1
    x = Scale(0.0, most, 34.0, width - 8)
    tallest = max(sum(own.values()) for own in bins)
    y = Scale(0.0, domain([0.0, float(tallest)], pad=0.02)[1], height - 40, 26.0)
    heads = ChartAxis("span in tokens", form=plain)
    mean = sum(number(row, "span") or 0.0 for row in rows) / len(rows)
    note = f"mean {mean:.3g}"
    room = width - 20 - width_of(note, SMALL)
    parts = [text(0, 14, shortened(name, room, HEADING), class_="heading")]
    parts.append(axes(heads, ChartAxis("", form=lambda v: f"{v:.0f}" if v == int(v) else ""), x, y))
    for at, own in enumerate(bins):
        parts += _stack(own, x(most * at / BINS) + 0.6, x(most * (at + 1) / BINS) - 0.6, y)
    parts.append(path([(x(mean), y.start), (x(mean), y.end)], class_="rule"))
    parts.append(text(width - 8, 14, note, class_="tick", text_anchor="end"))
    return tag("g", "".join(parts), class_=f"series {look.colour}", data_series=name)


def _stack(own: dict[float, int], left: float, right: float, y: Scale) -> list[str]:
    parts, below = [], 0
    for at, (layer, count) in enumerate(own.items()):
        if count:
            top, bottom = y(below + count), y(below)
            hint = tag("title", clean(f"layer {layer:.0f}: {count} heads"))
            shade = 0.35 + 0.65 * (at + 1) / len(own)
            box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
            parts.append(tag("rect", hint, class_="block", fill_opacity=round(shade, 2), **box))
            below += count
    return parts

"""Learning curves: seeds averaged at their common steps; training loss, raw and smoothed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.metrics import metric
from weft.report.charts.palette import Look
from weft.report.charts.panels import ChartAxis, Line, Panel, figure
from weft.report.charts.scales import clock, clock_ticks, domain
from weft.report.read.fields import label, length, number
from weft.report.read.run_folder import Curve, RunFiles
from weft.report.read.statistics import smoothed
from weft.report.read.summary import Summaries
from weft.rows import Row

WINDOW = 9  # neighbouring points of the training loss that are averaged
MOST_SMALL = 24  # mechanisms with a panel
_STEPS = ChartAxis("training steps")
_TIME = ChartAxis("training time", form=clock, ticks=clock_ticks)


@dataclass(frozen=True)
class Averaged:
    """Values of several seeds at the steps they share."""

    steps: list[float]
    seconds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def by_label(run: RunFiles, n: int | None) -> dict[str, list[Curve]]:
    """The curves of one length, by mechanism."""
    found: dict[str, list[Curve]] = {}
    for curve in run.curves:
        if length(curve.row) == n:
            found.setdefault(label(curve.row), []).append(curve)
    return found


def averaged(seeds: Sequence[Sequence[Row]], key: str) -> Averaged | None:
    """The mean over seeds at common steps; only the longest seed where they share too few."""
    tables = [_at_steps(rows, key) for rows in seeds]
    tables = [table for table in tables if table]
    if not tables:
        return None
    longest = max(tables, key=len)
    steps = sorted(set(longest).intersection(*tables))
    if 2 * len(steps) < len(longest):
        tables, steps = [longest], sorted(longest)
    values = [[table[step][0] for table in tables] for step in steps]
    times = [[table[step][1] for table in tables] for step in steps]
    mean = [sum(own) / len(own) for own in values]
    seconds = [sum(own) / len(own) for own in times]
    return Averaged(steps, seconds, mean, [*map(min, values)], [*map(max, values)])


def _at_steps(rows: Sequence[Row], key: str) -> dict[float, tuple[float, float]]:
    found = {}
    for row in rows:
        step, value = number(row, "step"), number(row, key)
        if step is not None and value is not None:
            found[step] = value, number(row, "seconds") or 0.0
    return found


def learning(run: RunFiles, found: Summaries, n: int, looks: dict[str, Look], width: int) -> str:
    """Validation score and loss, against steps and against seconds."""
    curves = by_label(run, n)
    names = [name for name in found.labels if name in curves]
    bounds = (0.0, 1.0) if metric(found.metric).share else None
    panels = []
    for key, title, within in (("score", found.metric, bounds), ("loss", "loss", None)):
        lines = {
            name: mean
            for name in names
            if (mean := averaged([curve.valid for curve in curves[name]], key))
        }
        axis = ChartAxis(title, within=within)
        for axis_name in ("steps", "seconds"):
            own = [_line(name, looks[name], lines[name], axis_name) for name in lines]
            heading = f"validation {title} by {axis_name}"
            if own and any(len(line.points) > 1 for line in own):
                across = _STEPS if axis_name == "steps" else _TIME
                panels.append(Panel(heading, across, axis, own))
    legend = [(name, looks[name]) for name in names]
    return figure(panels, width, "learning curves on validation data", legend=legend)


def _line(name: str, look: Look, mean: Averaged, axis: str) -> Line:
    xs = mean.steps if axis == "steps" else mean.seconds
    spread = list(zip(xs, mean.low, mean.high, strict=True))
    several = mean.low != mean.high
    return Line(name, look, list(zip(xs, mean.mean, strict=True)), spread=spread if several else ())


def train_and_valid(
    run: RunFiles, found: Summaries, n: int, looks: dict[str, Look], width: int
) -> str:
    """A small panel per mechanism: training loss, raw and smoothed, and validation loss."""
    curves = by_label(run, n)
    names = [name for name in found.labels if name in curves][:MOST_SMALL]
    lines = {name: _losses(name, looks[name], curves[name]) for name in names}
    shown = [line for own in lines.values() for line in own if line.style != "raw"]
    common = domain([y for line in shown for _, y in line.points])
    panels = [
        Panel(name, _STEPS, ChartAxis("loss", range=common), own)
        for name, own in lines.items()
        if own
    ]
    return figure(panels, width, "training and validation loss", columns=4, least=(140.0, 150.0))


def _losses(name: str, look: Look, curves: Sequence[Curve]) -> list[Line]:
    lines = []
    train = averaged([curve.train for curve in curves], "loss")
    valid = averaged([curve.valid for curve in curves], "loss")
    look = Look(look.colour, look.shape)  # here dashes mean training, not the mechanism
    if train:
        raw = list(zip(train.steps, train.mean, strict=True))
        soft = list(zip(train.steps, smoothed(train.mean, WINDOW), strict=True))
        for text, points, style in (("training, raw", raw, "raw"), ("training", soft, "thin")):
            own = f"{name}, {text}"
            lines.append(Line(own, look, points, marks="none", style=style, part_of=name))
    if valid:
        points = list(zip(valid.steps, valid.mean, strict=True))
        lines.append(Line(f"{name}, validation", look, points, part_of=name))
    return lines

"""Reliability: how often predictions are right, against how sure the model is of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.report.charts.palette import Look
from weft.report.charts.panels import ChartAxis, Line, Panel, figure
from weft.report.read.fields import number
from weft.rows import Row

MOST_LINES = 8
_KEYS = ("confidence", "accuracy", "count")
_DIAGONAL = Look("dense", "circle", dash="2 4")


def reliability(curves: Mapping[str, Sequence[Row]], looks: Mapping[str, Look], width: int) -> str:
    """Accuracy over confidence, and how many rows have it; a line for each mechanism."""
    right, shares = (
        [Line("calibrated", _DIAGONAL, [(0.0, 0.0), (1.0, 1.0)], style="thin", marks="none")],
        [],
    )
    for name, bins in list(curves.items())[:MOST_LINES]:
        points = [tuple(number(own, key) or 0.0 for key in _KEYS) for own in bins]
        whole = sum(count for *_, count in points) or 1.0
        right.append(Line(name, looks[name], [(x, y) for x, y, _ in points], marks="all"))
        shares.append(Line(name, looks[name], [(x, n / whole) for x, _, n in points], marks="all"))
    across = ChartAxis("confidence of the prediction", range=(0.0, 1.0))
    panels = [
        Panel("share that is right", across, ChartAxis("", range=(0.0, 1.0)), right),
        Panel("share of the rows", across, ChartAxis("", within=(0.0, 1.0)), shares),
    ]
    legend = [(line.label, line.look) for line in right[1:]]
    alt = "accuracy against confidence"
    return figure(panels, width, alt, columns=2, legend=legend if len(legend) > 1 else ())

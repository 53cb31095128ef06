"""Plots from rows, as PNG or SVG; matplotlib is an extra and is imported when a plot is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.files import replacing
from weft.report.tables.table import BASELINE, BOTH, FORWARD, MEMORY, byte_count, seconds
from weft.rows import Row

MEASURES = {FORWARD: "median_s", BOTH: "median_s", MEMORY: "peak_bytes"}
_COLOURS = ("#2b6cb0", "#d9772b", "#2f9e63", "#b8405e", "#7a55b0", "#8a6d3b", "#3aa6a6", "#c9a400")
_MARKS = "osD^vP*X<>p"
TITLES = {
    FORWARD: "forward",
    BOTH: "forward + backward",
    MEMORY: "peak memory of forward + backward",
}


def plot_bench(rows: Sequence[Row], path: str | Path) -> None:
    """Time and memory against length, log-log, a line per case; dense attention is black."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise WeftError(f"a plot is .png or .svg; got {str(path)!r}")
    figure = draw_bench(rows)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=160, bbox_inches="tight")


def draw_bench(rows: Sequence[Row]) -> Any:
    """The plot as a matplotlib figure: a panel for each measure with numbers."""
    measured = [row for row in rows if row.get(MEASURES[row["measure"]]) is not None]
    if not measured:
        raise WeftError("there is nothing to plot: no row holds a number")
    present = {row["measure"] for row in measured}
    shown = [measure for measure in MEASURES if measure in present]
    styles = _styles(measured)
    figure = _figure(5.2 * len(shown) + 0.4, 4.6)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, measure in zip(panels, shown, strict=True):
        _panel(axes, [row for row in measured if row["measure"] == measure], measure, styles)
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    figure.legend(
        lines.values(),
        lines.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=min(2 * len(shown), len(lines)),
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(_title(measured), x=0.02, ha="left", size=11)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    return figure


def draw_curriculum(rows: Sequence[Row], phases: Sequence[str]) -> Any:
    """Validation and training accuracy over minutes; phases are shaded and numbered."""
    figure = _figure(9.6, 4.2)
    axes = figure.subplots()
    for kind, key, colour in (("train", "accuracy", "#bbbbbb"), ("valid", "score", _COLOURS[0])):
        points = [(row["seconds"] / 60, row[key]) for row in rows if row["kind"] == kind]
        label = {"train": "training batches", "valid": "validation"}[kind]
        axes.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.4)
    begin = 0.0
    for at, name in enumerate(phases):
        end = max(row["seconds"] for row in rows if row.get("phase") == at) / 60
        axes.axvspan(begin, end, color="#000000", alpha=0.05 * (at % 2), linewidth=0)
        axes.text((begin + end) / 2, 1.01, str(at + 1), ha="center", size=8)
        axes.plot([], [], " ", label=f"{at + 1}  {name}")
        begin = end
    axes.set(xlim=(0, begin), ylim=(0.45, 1), xlabel="minutes", ylabel="accuracy")
    _grid(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    return figure


def draw_learning(rows: Sequence[Row]) -> Any:
    """Validation score over updates, a panel for each task and a line for each mechanism."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure = _figure(4.8 * max(len(tasks), 1.6), 4.4)
    lines: dict[str, Any] = {}  # one of each mechanism, for the legend
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for number, label in enumerate(labels):
            own = [row for row in rows if (row["task"], row["label"]) == (task, label)]
            points = [(row["step"], row["score"]) for row in own]
            if points:
                around, at = divmod(number, len(_COLOURS))  # colours come again, dashed
                style = {"color": _COLOURS[at], "linestyle": ("-", "--", ":")[around % 3]}
                (lines[label],) = axes.plot(
                    *zip(*points, strict=True), label=label, linewidth=1.4, **style
                )
        axes.set(title=task, xlabel="updates", ylabel="validation score")
        _grid(axes)
    figure.subplots_adjust(bottom=0.22, wspace=0.28)
    shown = [label for label in labels if label in lines]
    columns = min(max(len(shown), 1), 6)
    place = {"loc": "lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend([lines[label] for label in shown], shown, **place)
    return figure


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise WeftError(
            "a plot needs matplotlib, which is not installed; pip install matplotlib"
        ) from cause
    return Figure(figsize=(width, height), facecolor="white")


def _panel(axes: Any, rows: Sequence[Row], measure: str, styles: dict[str, dict[str, Any]]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    key = MEASURES[measure]
    for label, style in styles.items():
        points = sorted((row["length"], row[key]) for row in rows if _label(row) == label)
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2 if measure == MEMORY else 10)
    lengths = sorted({row["length"] for row in rows})
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    unit = byte_count if measure == MEMORY else seconds
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axes.yaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: unit(value) if _few_decades(axes) else "")
    )
    axes.tick_params(labelsize=8, which="both")
    _grid(axes)
    axes.set_axisbelow(True)
    axes.set_xlabel("tokens")
    axes.set_title(TITLES[measure], loc="left", size=10)


def _grid(axes: Any) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _few_decades(axes: Any) -> bool:
    low, high = axes.get_ylim()
    return high < 20 * low


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour and a mark per case, dense in black; cores are dashed, rivals dotted."""
    names = list(dict.fromkeys(row["case"] for row in rows if row["case"] != BASELINE))
    styles: dict[str, dict[str, Any]] = {}
    for row in rows:
        dense = row["case"] == BASELINE
        at = 0 if dense else names.index(row["case"])
        styles[_label(row)] = {
            "color": "black" if dense else _COLOURS[at % len(_COLOURS)],
            "marker": "o" if dense else _MARKS[at % len(_MARKS)],
            "linestyle": {"core": "--", "pattern": "--", "rival": ":"}.get(row["kind"], "-"),
            "linewidth": 2.2 if dense else 1.6,
            "markersize": 5,
        }
    return styles


def _label(row: Row) -> str:
    name = "dense (SDPA)" if row["case"] == BASELINE else row["case"]
    return f"{name}, core" if row["kind"] in ("core", "pattern") else name


def _title(rows: Sequence[Row]) -> str:
    row = rows[0]
    return (
        f"Attention on {row['device_name']}, {row['dtype']}, batch {row['batch']}, "
        f"{row['heads']} heads of {row['head_dim']}{', causal' if row['causal'] else ''}"
    )

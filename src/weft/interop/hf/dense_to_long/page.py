"""The report of a conversion: losses by position, the rotary base, speed and state."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from weft.interop.hf.dense_to_long.findings import Findings, points
from weft.interop.hf.dense_to_long.losses import in_bins
from weft.report.charts.palette import DASHES, SHAPES, Look
from weft.report.charts.panels import ChartAxis, Line, Panel, figure
from weft.report.charts.scales import tokens
from weft.report.page.document import (
    Block,
    Chart,
    Command,
    DataTable,
    KeyFigures,
    Paragraph,
    Report,
    Section,
    TableCell,
    Tile,
)
from weft.report.tables.table import byte_count, seconds

_IN = "original, in chunks"


def report_of(found: Findings) -> Report:
    """The whole report."""
    form = found.form
    sections = [_answer(found), _losses(found), _rotary(found), _cost(found), _again(found)]
    return Report(
        title=f"{found.source.name} at {form.length:,} tokens",
        subtitle=f"{found.kind} made from {form.trained:,} positions; {found.note}",
        sections=[section for section in sections if section is not None],
        footer="Written by weft from this conversion. The page needs no network.",
    )


def _answer(found: Findings) -> Section:
    form, blocks = found.form, []
    tiles = [Tile("length", f"{form.length:,}", f"{form.trained:,} before")]
    if found.curves:
        last = f"{found.bins[-1][0]}-{found.bins[-1][1]}"
        name = list(found.curves)[-1]
        ours, own = (in_bins(found.curves[key], found.bins)[last] for key in (name, _IN))
        tiles.append(
            Tile(
                f"loss at {last}", f"{ours:.4f}", f"original in chunks: {own:.4f}; lower is better"
            )
        )
    if found.cosine is not None:
        mean, least = found.cosine
        tiles.append(Tile("cosine on short texts", f"{mean:.4f}", f"the least: {least:.4f}"))
    if found.faster is not None:
        tiles.append(Tile("prefill", f"{found.faster:.3g}×", "as fast as dense at this length"))
    if found.smaller is not None:
        tiles.append(Tile("decoding state", f"{found.smaller:.3g}×", "smaller than dense"))
    patterns = [
        [TableCell("all other layers" if key == "*" else f"layers {key}", number=False),
         TableCell(text, number=False)]
        for key, text in form.patterns.items()
    ]  # fmt: skip
    blocks: list[Block] = [KeyFigures(tiles), Paragraph(_told(found))]
    blocks.append(DataTable(["layers", "pattern"], patterns, "patterns by layer"))
    return Section("answer", "What came out", blocks)


def _told(found: Findings) -> str:
    form = found.form
    rotary = ""
    if form.rotary_layers:
        layers = ", ".join(map(str, form.rotary_layers))
        rotary = f" The rotary base of layers {layers} is {form.rotary_factor:g} times the model's."
    if not found.training:
        return f"Nothing was trained.{rotary}"
    steps, spent = int(found.training["steps"]), found.training["seconds"]
    count = steps * found.settings.batch * form.length
    return (
        f"Trained with the model's own loss for {steps:,} steps of {found.settings.batch} rows, "
        f"{count:,} tokens, in {spent:.0f} s, at rates up to {found.settings.rate:g}.{rotary}"
    )


def _losses(found: Findings) -> Section | None:
    if not found.curves:
        return None
    bins = found.bins
    header = ["variant", "all", *(f"{low:,}–{high:,}" for low, high in bins)]
    values = {
        name: [float(curve.nanmean()), *in_bins(curve, bins).values()]
        for name, curve in found.curves.items()
    }
    best = [min(column) for column in zip(*values.values(), strict=True)]
    rows = [
        [TableCell(name, number=False)]
        + [
            TableCell(_loss(x), "best" if x == low else "")
            for x, low in zip(own, best, strict=True)
        ]
        for name, own in values.items()
    ]
    caption = "Mean loss in nats of held-out rows by position; lower is better, the lowest is bold."
    notes = [
        f"In chunks: the original reads pieces of {found.form.trained:,} tokens, each by itself."
    ]
    if found.training:
        notes.append(
            "Training also made the model used to this kind of text, which the original is not: "
            "compare with the original trained on the same text for the gain of length alone."
        )
    draw = partial(_curves, found)
    chart = Chart(
        "loss", "loss by position", draw, "Each point is the mean of a span of positions."
    )
    return Section(
        "losses", "Loss by position", [DataTable(header, rows, caption, {}, notes), chart]
    )


def _loss(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "–"


def _curves(found: Findings, width: int) -> str:
    lines, legend = [], []
    for at, (name, curve) in enumerate(found.curves.items()):
        look = Look(f"c{at}", SHAPES[at], DASHES[at % len(DASHES)])
        own = points(curve)
        each = len(curve) / len(own)
        shown = [((i + 0.5) * each, x) for i, x in enumerate(own) if math.isfinite(x)]
        lines.append(Line(name, look, shown))
        legend.append((name, look))
    across = ChartAxis("position", form=tokens)
    panel = Panel("loss by position", across, ChartAxis(""), lines)
    return figure([panel], width, "loss by position", ratio=0.5, least=(240, 260), legend=legend)


def _rotary(found: Findings) -> Section | None:
    if not found.trials:
        return None
    spans = list(found.trials[0].bins)
    rows = [
        [TableCell(f"× {trial.factor:g}", number=False), TableCell(f"{trial.mean:.4f}")]
        + [TableCell(_loss(trial.bins[span])) for span in spans]
        for trial in found.trials
    ]
    text = (
        "Layers that read beyond the trained length get a larger rotary base. Each factor was "
        "tried before training on the user's text, on rows that are not held out unless nothing "
        "is trained; the best was taken, and is the first row."
    )
    table = DataTable(["base", "all", *spans], rows, "Mean loss by position; lower is better.")
    return Section("rotary", "Rotary base", [Paragraph(text), table])


def _cost(found: Findings) -> Section | None:
    if not found.cost:
        return None
    names = {"dense": "dense attention", "sparse": "under the patterns"}
    rows = [_cost_cells(names[name], cost) for name, cost in found.cost.items()]
    header = ["", "prefill", "memory above the weights", "decoding state"]
    caption = f"One row of {found.form.length:,} tokens; medians of {found.settings.rounds} rounds."
    return Section("cost", "Speed and memory", [DataTable(header, rows, caption)])


def _cost_cells(name: str, cost: Any) -> list[TableCell]:
    peak, state = cost["peak_bytes"], cost["state_bytes"]
    return [
        TableCell(name, number=False),
        TableCell(seconds(cost["seconds"])),
        TableCell(byte_count(peak) if peak else "measured on a GPU alone"),
        TableCell(byte_count(state) if state else "none: an encoder"),
    ]


def _again(found: Findings) -> Section:
    kind = found.kind.partition("For")[2] or "Model"
    auto = "AutoModel" if kind == "Model" else f"AutoModelFor{kind}"
    use = "import weft.interop.hf  # sets the patterns; without it Transformers refuses the folder"
    load = f"from transformers import {auto}\n\nmodel = {auto}.from_pretrained(FOLDER)"
    blocks = [Command(f"{use}\n{load}"), Paragraph("To convert it again:"), Command(found.line())]
    return Section("use", "Use, and reproduce", blocks)

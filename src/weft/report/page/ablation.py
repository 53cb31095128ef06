"""The report of `weft ablate`: modifications ranked and compared with the base and a study.

A difference from the base counts as real beyond twice the standard deviation of a difference of
two trainings, 2·√(s² + s_base²), from the spread over seeds; smaller ones are within the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from weft.report.charts.dots import Dot, dot_plot
from weft.report.charts.scales import plain, signed
from weft.report.page.document import (
    Block,
    Chart,
    DataTable,
    KeyFigures,
    Paragraph,
    Points,
    Section,
    TableCell,
    Tile,
)
from weft.report.page.headline import listed
from weft.report.page.sections import Material
from weft.report.read.fields import label, number
from weft.report.read.statistics import ranks, spearman, spearman_interval
from weft.rows import Row

WIDE = 2.0  # standard deviations


@dataclass(frozen=True)
class Found:
    """One modification with an early loss, compared with the base."""

    row: Row
    loss: float
    std: float | None
    difference: float | None  # from the base; None for the base itself
    beyond: bool | None  # whether it differs by more than the spread; None: unknown

    @property
    def label(self) -> str:
        """The name of the modification."""
        return label(self.row)

    @property
    def better(self) -> bool:
        """Whether its loss is below the base's by more than the spread."""
        return bool(self.beyond) and self.difference is not None and self.difference < 0

    @property
    def worse(self) -> bool:
        """Whether its loss is above the base's by more than the spread."""
        return bool(self.beyond) and self.difference is not None and self.difference > 0


def ranked(rows: Sequence[Row]) -> list[Found]:
    """Those with a loss, lowest first."""
    base = next((row for row in rows if row.get("base")), {})
    known = [(row, loss) for row in rows if (loss := number(row, "early_loss")) is not None]
    return sorted((_found(row, loss, base) for row, loss in known), key=lambda found: found.loss)


def _found(row: Row, loss: float, base: Row) -> Found:
    std = number(row, "early_std")
    other, spread = number(base, "early_loss"), number(base, "early_std")
    if row is base or other is None:
        return Found(row, loss, std, None, None)
    beyond = None
    if std is not None and spread is not None:
        beyond = abs(loss - other) > WIDE * (std**2 + spread**2) ** 0.5
    return Found(row, loss, std, loss - other, beyond)


def answer(m: Material) -> Section:
    """Which modifications help."""
    found = ranked(m.run.ablation)
    if not found:
        return Section("answer", "The answer", [Paragraph("No modification has a loss yet.")])
    others = [own for own in found if own.difference is not None]
    better = [own.label for own in others if own.better]
    worse = [own.label for own in others if own.worse]
    same = [own.label for own in others if own.beyond is False]
    single = [own.label for own in others if own.beyond is None]
    tiles = [Tile("best", f"{found[0].loss:.3f}", found[0].label)]
    sentences = []
    if better or worse or same:
        tiles += [Tile("better than the base", str(len(better)), f"of {len(others)}")]
        tiles += [Tile("within the noise", str(len(same)), f"of {len(others)}")]
        sentences += [
            Paragraph(f"{listed(better) or 'none'}.", "Better than the base:"),
            Paragraph(f"{listed(same) or 'none'}.", "Not distinguishable from it:"),
            Paragraph(f"{listed(worse) or 'none'}.", "Worse:"),
        ]
    if single:
        text = f"{listed(single)}. With one seed no difference can be told from chance: --seeds 3."
        sentences.append(Paragraph(text, "Not judged:"))
    return Section(
        "answer", "The answer", [KeyFigures(tiles), Points([*sentences, *agreement(found)])]
    )


def agreement(found: Sequence[Found]) -> list[Paragraph]:
    """Spearman's rank correlation with the study, in a sentence; empty below four models."""
    pairs = published_pairs(found)
    if len(pairs) < 4:
        return []
    rho = spearman([own for _, own, _ in pairs], [theirs for _, _, theirs in pairs])
    low, high = spearman_interval(rho, len(pairs))
    text = (
        f"Spearman's rank correlation with the published early losses is {rho:+.2f} over "
        f"{len(pairs)} models, the base among them (95 % interval {low:+.2f} to {high:+.2f})."
    )
    return [Paragraph(text.replace("-", "−"), "Compared with the published study:")]


def published_pairs(found: Sequence[Found]) -> list[tuple[str, float, float]]:
    """Modifications that are also in the study: name, our early loss, theirs."""
    both = [(own, number(own.row, "published_early")) for own in found]
    return [(own.label, own.loss, theirs) for own, theirs in both if theirs is not None]


def dots(m: Material) -> Section | None:
    """The losses with their spread, as a dot plot."""
    found = ranked(m.run.ablation)
    if not found:
        return None
    entries = [Dot(own.label, own.loss, own.std, _look(own), _hint(own)) for own in found]
    base = next((own for own in found if own.difference is None), None)
    band = (base.loss, WIDE * base.std if base.std else 0.0) if base else None
    caption = (
        "Held-out loss at the early step, lowest first; bars are one standard deviation over "
        "seeds. Dashed: the base, with a band of twice its standard deviation. Filled in colour: "
        "beyond the noise."
    )
    alt = "early loss of every modification with its spread over seeds"
    draw = cache(lambda width: dot_plot(entries, band, "held-out loss, nats", width, alt))
    return Section("losses", "Early losses", [Chart("ablation", alt, draw, caption)])


def _look(own: Found) -> str:
    if own.difference is None:
        return "dense"
    if not own.beyond:
        return "noise"
    return "c2" if own.better else "c1"


def _hint(own: Found) -> str:
    change = own.row.get("change")
    return f"{own.label}: {own.loss:.4f}" + (f" ({change})" if change else "")


def table(m: Material) -> Section | None:
    """The table of the study."""
    if not m.run.ablation:
        return None
    blocks: list[Block] = [ablation_table(m.run.ablation)]
    return Section("table", "Every modification", blocks)


def ablation_table(rows: Sequence[Row]) -> DataTable:
    """Ranked by early loss; those without one at the end."""
    found = ranked(rows)
    columns = [(name, form) for name, form in _COLUMNS if any(form(own) != "–" for own in found)]
    lines = [
        [_name(own), *(TableCell(form(own), _mark(name, own)) for name, form in columns)]
        for own in found
    ]
    missing = [row for row in rows if number(row, "early_loss") is None]
    for row in missing:
        ended = str(row.get("status")) if row.get("reason") else "not finished"
        empty = [TableCell("–", "faint")] * (len(columns) - 1)
        lines.append(
            [TableCell(label(row), "faint", number=False), TableCell(ended, "faint"), *empty]
        )
    first = rows[0]
    said = (
        f"Early loss: held-out loss in nats after {number(first, 'steps') or 0:,.0f} updates, mean "
        "± standard deviation over seeds. Bold: differs from the base by more than "
        f"{WIDE:g} standard deviations of a difference of two trainings."
    )
    return DataTable(
        ["modification", *(name for name, _ in columns)], lines, said, notes=_notes(rows)
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = ["FLOPs are of training, for one token, forward and backward."]
    if any(number(row, "steps_per_second") for row in rows):
        notes.append("Steps/s: alone on the device, in turns within one process, the median.")
    final = number(rows[0], "final_steps")
    if final:
        notes.append(f"Final loss and quality: one training of {final:,.0f} updates.")
    metric = next((str(row["metric"]) for row in rows if row.get("metric")), "score")
    return [*notes, f"Quality: {metric} on the test split."]


def _name(own: Found) -> TableCell:
    return TableCell(own.label, "best" if own.difference is None else "", number=False)


def _mark(column: str, own: Found) -> str:
    return "best" if column == "against base" and own.beyond else ""


def _loss(own: Found) -> str:
    return f"{own.loss:.3f}" + ("" if own.std is None else f" ± {own.std:.3f}")


def _against(own: Found) -> str:
    return "–" if own.difference is None else signed(own.difference)


def _of(key: str, form: Callable[[float], str]) -> Callable[[Found], str]:
    def shown(own: Found) -> str:
        value = number(own.row, key)
        return "–" if value is None else form(value)

    return shown


_COLUMNS: list[tuple[str, Callable[[Found], str]]] = [
    ("early loss", _loss),
    ("against base", _against),
    ("final loss", _of("final_loss", "{:.3f}".format)),
    ("quality", _of("quality", "{:.3f}".format)),
    ("parameters", _of("parameters", plain)),
    ("FLOPs/token", _of("flops_per_token", plain)),
    ("steps/s", _of("steps_per_second", "{:.3g}".format)),
    ("seeds", _of("seeds", "{:.0f}".format)),
    ("published early loss", _of("published_early", "{:.3f}".format)),
]


def study(m: Material) -> Section | None:
    """Our ranks and the published ones."""
    pairs = published_pairs(ranked(m.run.ablation))
    if len(pairs) < 4:
        return None
    ours = ranks([own for _, own, _ in pairs])
    theirs = ranks([other for _, _, other in pairs])
    lines = [
        [
            TableCell(name, number=False),
            TableCell(f"{a:g}"),
            TableCell(f"{b:g}"),
            TableCell(signed(a - b, "+g") if a != b else "0"),
            TableCell(f"{own:.3f}"),
            TableCell(f"{other:.3f}"),
        ]
        for (name, own, other), a, b in zip(pairs, ours, theirs, strict=True)
    ]
    head = ["modification", "our rank", "published rank", "difference", "our loss", "published"]
    source = str(next(r["published_source"] for r in m.run.ablation if r.get("published_source")))
    note = (
        f"Published: {source}. Other data, sizes and task: ranks may be compared, losses may not."
    )
    return Section("study", "Compared with the published study", [DataTable(head, lines, note)])

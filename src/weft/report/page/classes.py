"""What accuracy does not say of a classifier: F1 by class, confusions, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft.report.charts.reliability import MOST_LINES, reliability
from weft.report.page.document import Block, Chart, DataTable, Folded, Paragraph, Section, TableCell
from weft.report.page.headline import listed
from weft.report.page.sections import Material
from weft.report.read.fields import number
from weft.report.read.run_folder import CellClasses

MOST_CLASSES = 30  # of a table
MOST_CONFUSED = 12  # classes of a matrix


def classes(m: Material) -> Section | None:
    """Scores by class and confusions, of the first seed of each mechanism."""
    found = first_of_each(m)
    if not found:
        return None
    names = list(found)
    blocks: list[Block] = []
    if len(found) == 1:
        blocks += [_alone(found[names[0]]), *_matrix(found[names[0]])]
    else:
        blocks.append(_by_mechanism(found))
        for name in names:
            inner = [_alone(found[name]), *_matrix(found[name])]
            blocks.append(Folded(f"{name}: every class", inner))
    return Section("classes", "By class", blocks)


def calibration(m: Material) -> Section | None:
    """Whether a confidence of 0.8 is right four times of five."""
    found = first_of_each(m)
    curves = {name: own.reliability for name, own in found.items() if own.reliability}
    if not curves:
        return None
    errors = [f"{name} {own.calibration_error:.3f}" for name, own in found.items()]
    more = f" The first {MOST_LINES} mechanisms." if len(curves) > MOST_LINES else ""
    caption = (
        "Left: on the dotted line, predictions are right as often as they are sure. Right: how "
        f"many rows have that confidence. Expected calibration error: {listed(errors)}.{more}"
    )
    alt = "how often predictions are right, by their confidence"
    draw = cache(lambda width: reliability(curves, m.looks, width))
    return Section("calibration", "Calibration", [Chart("calibration", alt, draw, caption)])


def first_of_each(m: Material) -> dict[str, CellClasses]:
    """The scores by class of the first seed of each mechanism, at the main length."""
    found: dict[str, CellClasses] = {}
    for own in m.run.classes:
        if own.length == m.n and own.label in m.looks:
            found.setdefault(own.label, own)
    return {name: found[name] for name in m.found.labels if name in found}


def _alone(own: CellClasses) -> DataTable:
    shown = sorted(own.classes, key=lambda row: number(row, "f1") or 0.0)[:MOST_CLASSES]
    keys = ("precision", "recall", "f1")
    rows = [
        [
            TableCell(str(row.get("label")), number=False),
            *(TableCell(f"{number(row, key) or 0.0:.3f}") for key in keys),
            TableCell(f"{number(row, 'count') or 0:,.0f}"),
        ]
        for row in shown
    ]
    said = f"Macro F1 {own.macro_f1:.3f}; lowest F1 first."
    if len(own.classes) > MOST_CLASSES:
        said += f" The {MOST_CLASSES} lowest of {len(own.classes)} classes."
    return DataTable(["class", "precision", "recall", "F1", "rows"], rows, said)


def _matrix(own: CellClasses) -> Sequence[Block]:
    names = [str(row.get("label")) for row in own.classes]
    if not 2 <= len(names) <= MOST_CONFUSED:
        return [Paragraph(f"The matrix of confusions of {len(names)} classes is left out.")]
    rows = []
    for row, name in zip(own.classes, names, strict=True):
        given = row.get("predicted as")
        counts = given if isinstance(given, dict) else {}
        cells = []
        for other in names:
            count = number(counts, other) or 0
            mark = "best" if other == name else "" if count else "faint"
            cells.append(TableCell(f"{count:,.0f}", mark))
        rows.append([TableCell(name, number=False), *cells])
    said = "Confusions: true classes down, predicted classes across; bold: right."
    return [DataTable(["true \\ predicted", *names], rows, said)]


def _by_mechanism(found: dict[str, CellClasses]) -> DataTable:
    labels = list(dict.fromkeys(str(r.get("label")) for own in found.values() for r in own.classes))
    scores = {
        name: {str(row.get("label")): number(row, "f1") for row in own.classes}
        for name, own in found.items()
    }
    rows = []
    for label in labels[:MOST_CLASSES]:
        values = [scores[name].get(label) for name in found]
        best = max((value for value in values if value is not None), default=None)
        tied = sum(value == best for value in values) > 1
        cells = [
            TableCell("–" if v is None else f"{v:.3f}", "best" if v == best and not tied else "")
            for v in values
        ]
        rows.append([TableCell(label, number=False), *cells])
    means = [TableCell(f"{own.macro_f1:.3f}") for own in found.values()]
    rows.append([TableCell("macro F1", "faint", number=False), *means])
    said = "F1 of each class on the test split, by the first seed."
    if len(labels) > MOST_CLASSES:
        said += f" The first {MOST_CLASSES} of {len(labels)} classes."
    return DataTable(["class", *found], rows, said)

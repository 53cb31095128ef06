"""The report of a run of `weft compare`, `train` or `ablate`, as a page and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import WeftError
from weft.files import replacing
from weft.report.charts.palette import looks
from weft.report.page import ablation, classes, sections
from weft.report.page.decode import decode_page
from weft.report.page.document import Report
from weft.report.page.drawn import drawn
from weft.report.page.headline import listed
from weft.report.page.html import page
from weft.report.page.markdown import markdown
from weft.report.page.reproduce import reproduce
from weft.report.page.timelines import timelines
from weft.report.read.run_folder import RunFiles, read_run
from weft.report.read.summary import compare

PARTS = (
    sections.answer,
    sections.trade_off,
    sections.standing,
    sections.scores,
    classes.classes,
    classes.calibration,
    sections.published,
    sections.costs,
    sections.lengths,
    sections.learning,
    sections.groups,
    sections.patterns,
    sections.spans,
    timelines,
    drawn,
    sections.failures,
    reproduce,
)
OF_ABLATION = (
    ablation.answer,
    ablation.dots,
    ablation.table,
    ablation.study,
    sections.failures,
    reproduce,
)


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write RUN/report.html, RUN/report.md and the drawings of the latter; returns the page's path.

    A `folder` that is a .jsonl file has the rows of `weft bench decode`; its page is beside it.
    `out` is another path for the page; the Markdown is in the same folder, under the same name.
    """
    rows = Path(folder).suffix == ".jsonl"
    usual = Path(folder).with_suffix(".html") if rows else Path(folder) / "report.html"
    path = Path(out) if out is not None else usual
    if path.suffix.lower() != ".html":
        raise WeftError(f"a report is a page, so its name ends in .html; got {str(path)!r}")
    document = decode_page(Path(folder)) if rows else build(read_run(folder))
    written = markdown(document, path.stem)
    for name, content in written.files.items():
        _write(path.with_suffix("") / name, content)
    _write(path.with_suffix(".md"), written.text.encode())
    _write(path, page(document).encode())
    return path


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def build(run: RunFiles) -> Report:
    """All sections that the files of a run have data for."""
    found = compare(run)
    dense = [s.label for s in found.summaries if s.dense]
    material = sections.Material(run, found, looks(found.labels, dense))
    made = [part(material) for part in (OF_ABLATION if run.ablation else PARTS)]
    task = run.title or run.folder.resolve().name
    several = len(found.labels) > 1 or bool(run.ablation)
    asked = "Which modification helps on" if run.ablation else "Which mechanism for"
    return Report(
        title=f"{asked} {task}?" if several else _alone(task, found.labels),
        subtitle=_subtitle(material),
        sections=[section for section in made if section],
        footer="Written by weft from the files of this run. The page needs no network.",
    )


def _alone(task: str, labels: Sequence[str]) -> str:
    named = f"{task}: {labels[0]}" if labels and labels[0] != task else task
    return named[:1].upper() + named[1:]


def _subtitle(material: sections.Material) -> str:
    run, found = material.run, material.found
    parts = [
        _count(len(found.labels), "model" if run.ablation else "mechanism"),
        _count(len({row.get("seed") for row in run.rows}), "seed"),
        f"{listed([f'{n:,}' for n in found.lengths if n])} tokens" if any(found.lengths) else "",
        run.first("device_name"),
        run.first("date")[:10].replace("-", "\N{NON-BREAKING HYPHEN}"),
    ]
    return " · ".join(part for part in parts if part)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")

"""The report of a run of `weft compare`, `train` or `ablate`, as a page and as Markdown."""

from __future__ import annotations

from pathlib import Path

from weft.errors import WeftError
from weft.files import replacing
from weft.report.charts.palette import looks
from weft.report.page import ablation, sections
from weft.report.page.document import Report
from weft.report.page.headline import listed
from weft.report.page.html import page
from weft.report.page.markdown import markdown
from weft.report.page.reproduce import reproduce
from weft.report.read.run_folder import RunFiles, read_run
from weft.report.read.summary import compare

PARTS = (
    sections.answer,
    sections.trade_off,
    sections.scores,
    sections.published,
    sections.costs,
    sections.lengths,
    sections.learning,
    sections.groups,
    sections.patterns,
    sections.spans,
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

    `out` is another path for the page; the Markdown is in the same folder, under the same name.
    """
    path = Path(out) if out is not None else Path(folder) / "report.html"
    if path.suffix.lower() != ".html":
        raise WeftError(f"a report is a page, so its name ends in .html; got {str(path)!r}")
    document = build(read_run(folder))
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
    task = run.task or run.folder.resolve().name
    asked = "Which modification helps on" if run.ablation else "Which mechanism for"
    return Report(
        title=f"{asked} {task}?" if len(found.labels) > 1 else str(task),
        subtitle=_subtitle(material),
        sections=[section for section in made if section],
        footer="Written by weft from the files of this run. The page needs no network.",
    )


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

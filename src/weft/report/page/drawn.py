"""Sounds, sequences and pictures: what an answer rests on, and what a model draws."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from weft.errors import WeftError
from weft.files import read_json
from weft.report.charts.logo import logo
from weft.report.charts.spectrogram import spectrogram
from weft.report.page.document import Block, Chart, Gallery, Paragraph, Section
from weft.report.page.sections import Material
from weft.report.read.run_folder import Picture

NAME = "drawn.json"  # in the folder of a run: documents of `weft explain`
FOLDER = "drawn"  # of PNG files of `weft generate`
MOST = 6  # documents on a page


def drawn(m: Material) -> Section | None:
    """Spectrograms, sequence logos, and pictures that the model drew."""
    file, home = m.run.folder / NAME, m.run.folder / FOLDER
    pictures = [Picture(path.stem, path) for path in sorted(home.glob("*.png"))]
    blocks: list[Block] = []
    try:
        rows = read_json(file) if file.is_file() else []
        made = [block for place, row in enumerate(rows[:MOST]) for block in _document(row, place)]
    except (WeftError, KeyError, TypeError, ValueError) as error:
        made = [Paragraph(f"{file.name} cannot be drawn: {error}; run weft explain again.")]
    if made:
        text = (
            "Bars and letters show by how much the log-odds of the answer fall when the embedding "
            "of a token is replaced by the mean of all: measured, one token after another."
        )
        blocks += [Paragraph(text), *made]
    if pictures:
        text = "Completions stand in a row: what was given, three that the model drew, the picture."
        blocks += [Paragraph(text), Gallery(pictures)]
    return Section("drawn", "Looked at one by one", blocks) if blocks else None


def _document(row: dict[str, Any], place: int) -> list[Block]:
    answer, label = str(row["answer"]), row.get("label")
    known = f"; it was {str(label)!r}" if label is not None else ""
    said = f"{row['probability']:.1%} for {answer!r}{known}."
    alt = f"what the answer {answer} about {row['name']} rests on"
    draw: Any
    if row["kind"] == "sound":
        own = (row["image"], row["influence"], row["seconds"], answer)
        draw = partial(spectrogram, *own, alt=alt)
    else:
        draw = partial(logo, row["letters"], row["influence"], alt=alt)
    at_width = cache(lambda width: draw(width=width))
    return [Paragraph(said, f"{row['name']}:"), Chart(f"drawn-{place + 1}", alt, at_width)]

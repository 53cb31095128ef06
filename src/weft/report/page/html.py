"""A document as one HTML file: opens from disk, needs no network, light and dark."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from weft.report.charts.palette import DARK, LIGHT, variables
from weft.report.charts.svg import clean
from weft.report.page.document import (
    Block,
    Chart,
    Command,
    DataTable,
    Folded,
    Gallery,
    KeyFigures,
    Paragraph,
    Points,
    Report,
    Section,
    TableCell,
)

WIDE, PHONE = 960, 330  # pixels that charts are drawn for
_HOME = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@cache
def asset(name: str) -> str:
    """A style sheet or script of this folder."""
    return (_HOME / name).read_text(encoding="utf-8")


def _text(content: str) -> str:
    """Escaped; no line break between a number and its spread."""
    return clean(content).replace(" ± ", "&nbsp;±&nbsp;")


def _name(content: str) -> str:
    """Escaped; a long name may be broken after its words."""
    return re.sub(r"(?<=[,_])|(?<=\w\()", "<wbr>", _text(content))


def page(document: Report) -> str:
    """The whole file."""
    colours = (
        f":root{{{variables(LIGHT)}color-scheme:light}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light])"
        f"{{{variables(DARK)}color-scheme:dark}}}}"
        f"@media screen{{:root[data-theme=dark]{{{variables(DARK)}color-scheme:dark}}}}"
    )
    title = _text(document.title)
    links = "".join(f'<a href="#{s.key}">{_text(s.title)}</a>' for s in document.sections)
    body = "".join(map(_section, document.sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{colours}
{asset("page.css")}{asset("chart.css")}</style>
</head>
<body>
<header>
<button id="theme" type="button" aria-label="Switch between light and dark" hidden>◐</button>
<h1>{_name(document.title)}</h1>
<p class="subtitle">{_text(document.subtitle)}</p>
<nav aria-label="Parts of this report">{links}</nav>
</header>
<main>
{body}</main>
<footer>{_text(document.footer)}</footer>
<script>{asset("page.js")}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    blocks = "".join(map(_block, section.blocks))
    return f'<section id="{section.key}"><h2>{_text(section.title)}</h2>\n{blocks}</section>\n'


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f"<p>{_sentence(block)}</p>\n"
        case Points():
            items = "".join(f"<li>{_sentence(item)}</li>" for item in block.items)
            return f'<ul class="points">{items}</ul>\n'
        case KeyFigures():
            return _tiles(block)
        case DataTable():
            return _grid(block)
        case Chart():
            return _chart(block)
        case Gallery():
            return _gallery(block)
        case Command():
            return f"<pre><code>{_lines(block.text)}</code></pre>\n"
        case Folded():
            inner = "".join(map(_block, block.blocks))
            return f"<details><summary>{_text(block.title)}</summary>{inner}</details>\n"


def _lines(text: str) -> str:
    return "\n".join(map(clean, text.split("\n")))


def _sentence(paragraph: Paragraph) -> str:
    strong = f"<strong>{_text(paragraph.strong)}</strong> " if paragraph.strong else ""
    return strong + _text(paragraph.text)


def _tiles(block: KeyFigures) -> str:
    tiles = "".join(
        f'<div class="tile"><p class="what">{_text(tile.title)}</p>'
        f'<p class="value">{_text(tile.value)}</p><p class="who">{_name(tile.note)}</p></div>'
        for tile in block.tiles
    )
    return f'<div class="tiles">{tiles}</div>\n'


def _grid(block: DataTable) -> str:
    """A table in a box that scrolls where the page is narrow."""
    head = "".join(
        f'<th scope="col"{_class("number" if number else "")}>{_text(name)}</th>'
        for name, number in zip(block.header, block.numeric, strict=True)
    )
    lines = []
    for at, row in enumerate(block.rows):
        if at in block.sections:
            width = len(block.header)
            heading = f'<th colspan="{width}" scope="rowgroup">{_text(block.sections[at])}</th>'
            lines.append(f'<tr class="part">{heading}</tr>')
        lines.append(f"<tr>{_row(row)}</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    notes = "".join(f'<p class="note">{_text(text)}</p>' for text in block.below)
    hint = _text(block.caption or "table")
    return f'<div class="box" role="region" aria-label="{hint}" tabindex="0">{table}</div>{notes}\n'


def _row(cells: Sequence[TableCell]) -> str:
    tags = {"best": "strong", "second": "u"}
    written = []
    for at, cell in enumerate(cells):
        name = "td" if at else "th"
        text = _text(cell.text) if at else _name(cell.text)
        inner = f"<{tags[cell.mark]}>{text}</{tags[cell.mark]}>" if cell.mark in tags else text
        kind = " ".join(
            filter(None, ["number" if cell.number else "", "faint" if cell.mark == "faint" else ""])
        )
        scope = "" if at else ' scope="row"'
        written.append(f"<{name}{scope}{_class(kind)}>{inner}</{name}>")
    return "".join(written)


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _chart(block: Chart) -> str:
    """Drawn twice, for a wide and for a narrow page; the style sheet shows one."""
    drawn = (
        f'<div class="wide">{block.draw(WIDE)}</div><div class="narrow">{block.draw(PHONE)}</div>'
    )
    caption = f"<figcaption>{_text(block.caption)}</figcaption>" if block.caption else ""
    return f"<figure>{drawn}{caption}</figure>\n"


def _gallery(block: Gallery) -> str:
    figures = []
    for image in block.images:
        data = b64encode(image.path.read_bytes()).decode("ascii")
        note = f" <span>{_text(image.note)}</span>" if image.note else ""
        figures.append(
            f'<figure class="picture"><img alt="attention pattern of {_text(image.label)}" '
            f'loading="lazy" src="data:{image.kind};base64,{data}">'
            f"<figcaption><strong>{_text(image.label)}</strong>{note}</figcaption></figure>"
        )
    return f'<div class="gallery">{"".join(figures)}</div>\n'

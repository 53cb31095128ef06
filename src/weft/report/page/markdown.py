"""A document as Markdown that GitHub renders, with its drawings as separate files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape

from weft.report.charts.svg import clean, standalone
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
    TableCell,
)
from weft.report.page.html import WIDE, asset

_SPECIAL = re.compile(r"([\\`*_\[\]|$~])")


@dataclass
class Markdown:
    """The text, and the contents of its files by name."""

    text: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def markdown(document: Report, folder: str) -> Markdown:
    """The text; drawings are named as files of `folder`."""
    made = Markdown()
    parts = [f"# {escaped(document.title)}", escaped(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [_block(block, folder, made.files) for block in section.blocks]
    parts.append(f"---\n\n{escaped(document.footer)}")
    made.text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    return made


def escaped(text: str) -> str:
    """Escape Markdown and HTML in user text."""
    shown = _SPECIAL.sub(r"\\\1", clean(text).replace("&#x27;", "'").replace("&quot;", '"'))
    shown = re.sub(r"^([#+=-])", r"\\\1", shown)
    return re.sub(r"^(\d+)([.)])(?=\s)", r"\1\\\2", shown)  # not a numbered list


def _block(block: Block, folder: str, files: dict[str, bytes]) -> str:
    match block:
        case Paragraph():
            return _sentence(block)
        case Points():
            return "\n".join(f"- {_sentence(item)}" for item in block.items)
        case KeyFigures():
            header = [tile.title for tile in block.tiles]
            cells = [TableCell(f"{tile.value}", "best") for tile in block.tiles]
            return grid_markdown(
                DataTable(header, [cells, [TableCell(tile.note) for tile in block.tiles]])
            )
        case DataTable():
            return grid_markdown(block)
        case Chart():
            name = f"{block.name}.svg"
            files[name] = standalone(block.draw(WIDE), asset("chart.css")).encode()
            caption = f"\n\n{escaped(block.caption)}" if block.caption else ""
            return f"![{escaped(block.alt)}]({folder}/{name}){caption}"
        case Gallery():
            return _gallery(block, folder, files)
        case Command():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            lines = "\n".join(unescape(clean(line)) for line in block.text.split("\n"))
            return f"{fence}console\n{lines}\n{fence}"
        case Folded():
            inner = "\n\n".join(_block(part, folder, files) for part in block.blocks)
            return f"<details><summary>{clean(block.title)}</summary>\n\n{inner}\n\n</details>"


def _sentence(paragraph: Paragraph) -> str:
    strong = f"**{escaped(paragraph.strong)}** " if paragraph.strong else ""
    return strong + escaped(paragraph.text)


def grid_markdown(block: DataTable) -> str:
    """A table, and its caption and notes below."""
    lines = [_line([escaped(name) for name in block.header])]
    lines.append("|" + "".join("---:|" if number else "---|" for number in block.numeric))
    for at, row in enumerate(block.rows):
        if at in block.sections:
            heading = f"*{escaped(block.sections[at])}*"
            lines.append(_line([heading, *[""] * (len(block.header) - 1)]))
        lines.append(_line([_cell(cell) for cell in row]))
    return "\n".join(lines) + "".join(f"\n\n{escaped(text)}" for text in block.below)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: TableCell) -> str:
    around: Mapping[str, tuple[str, str]] = {"best": ("**", "**"), "second": ("<ins>", "</ins>")}
    before, after = around.get(cell.mark, ("", ""))
    text = escaped(cell.text)
    return f"{before}{text}{after}" if text else ""


def _gallery(block: Gallery, folder: str, files: dict[str, bytes]) -> str:
    parts = []
    for at, image in enumerate(block.images):
        name = f"pattern-{at}{image.path.suffix.lower()}"
        files[name] = image.path.read_bytes()
        note = f": {escaped(image.note)}" if image.note else ""
        parts.append(
            f"![pattern of {escaped(image.label)}]({folder}/{name})\n\n"
            f"**{escaped(image.label)}**{note}"
        )
    return "\n\n".join(parts)

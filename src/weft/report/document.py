"""A report as blocks: the page and the Markdown are both written from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One cell of a table; `mark` is what the eye should find first."""

    text: str
    mark: str = ""  # "best" is bold, "second" is underlined, "faint" is grey
    number: bool = True  # numbers stand to the right


@dataclass(frozen=True)
class Paragraph:
    """A sentence or a few; `strong` opens it in bold."""

    text: str
    strong: str = ""


@dataclass(frozen=True)
class Points:
    """A list of short sentences."""

    items: Sequence[Paragraph]


@dataclass(frozen=True)
class Tile:
    """One figure worth remembering."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class Tiles:
    """A row of them."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Grid:
    """A table; `sections` maps the index of a row to the heading that stands above it."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sections: dict[int, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing that is made for a width in pixels, so that a phone gets its own."""

    name: str  # of its file
    alt: str
    draw: Callable[[int], str]
    caption: str = ""


@dataclass(frozen=True)
class Image:
    """A picture file."""

    path: Path
    kind: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Gallery:
    """Picture files side by side."""

    images: Sequence[Image]


@dataclass(frozen=True)
class Command:
    """Lines for a shell."""

    text: str


@dataclass(frozen=True)
class Folded:
    """Blocks that are closed until asked for."""

    title: str
    blocks: Sequence[Block]


Block = Paragraph | Points | Tiles | Grid | Chart | Gallery | Command | Folded


@dataclass(frozen=True)
class Section:
    """A heading and its blocks; `key` is its address within the page."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: str

"""A report as blocks: the page and the Markdown are both written from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.report.read.run_folder import Picture


@dataclass(frozen=True)
class TableCell:
    """One cell of a table; `mark` highlights it."""

    text: str
    mark: str = ""  # "best" is bold, "second" is underlined, "faint" is grey
    number: bool = True  # numbers are right-aligned


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
    """One key figure."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class KeyFigures:
    """A row of key figures."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class DataTable:
    """A table; `sections` maps the index of a row to the heading above it."""

    header: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    caption: str = ""
    sections: dict[int, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only."""
        return [all(row[at].number for row in self.rows) for at in range(len(self.header))]

    @property
    def below(self) -> list[str]:
        """The texts below the table: caption and notes."""
        return [text for text in (self.caption, *self.notes) if text]


@dataclass(frozen=True)
class Chart:
    """A drawing, made for a width in pixels: a phone gets a narrower one."""

    name: str  # of its file
    alt: str
    draw: Callable[[int], str]
    caption: str = ""


@dataclass(frozen=True)
class Gallery:
    """Image files in a grid."""

    images: Sequence[Picture]


@dataclass(frozen=True)
class Command:
    """A shell command."""

    text: str


@dataclass(frozen=True)
class Folded:
    """Blocks that are collapsed at first."""

    title: str
    blocks: Sequence[Block]


Block = Paragraph | Points | KeyFigures | DataTable | Chart | Gallery | Command | Folded


@dataclass(frozen=True)
class Section:
    """A heading and its blocks; `key` is its address within the page."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: str

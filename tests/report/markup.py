"""Checks of written pages and Markdown, each usable on a broken text."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "input", "link", "wbr"}


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.problems = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def read_page(text):
    """Tags with attributes, texts; raises where tags are not balanced or the network is asked."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.problems, reader.problems[:3]
    assert not reader.open, f"never closed: {reader.open}"
    for tag, attrs in reader.tags:
        assert tag not in ("link", "iframe", "object", "embed"), f"<{tag}> loads something"
        for name in ("src", "href", "srcset", "data", "action"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), f"{tag} {name}={value}"
        assert not [name for name in attrs if name.startswith("on")], f"<{tag}> runs {attrs}"
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert "@import" not in text, "@import loads something"
    assert not re.search(r"url\((?!['\"]?data:)", text)
    return reader


def visible(text):
    """What a page says, in one line, without its pictures and drawings."""
    reader = read_page(re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL))
    return " ".join(" ".join(reader.texts).replace("\xa0", " ").split())


def drawings(text):
    """Every drawing of a page, parsed; raises where one is no XML."""
    found = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    return [ElementTree.fromstring(one) for one in found]


def finite(drawing):
    """Raises where a coordinate is no number."""
    for element in drawing.iter():
        for name in ("d", "x", "y", "cx", "cy", "r", "width", "height", "viewBox", "transform"):
            value = element.get(name, "")
            assert not re.search(r"nan|inf", value, re.IGNORECASE), f"{element.tag} {name}={value}"


def tables_of(markdown):
    """The tables of a Markdown text, as lists of cells; raises where a row has other columns."""
    found, rows = [], []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            assert len({len(row) for row in rows}) == 1, f"ragged: {rows[0]}"
            found.append(rows)
            rows = []
    return found

"""Pieces of SVG, escaped: elements, texts, marks, and how wide a text is."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

from weft.report.charts.palette import DARK, LIGHT, Look, variables

NARROW, WIDE = set("iljtfrI.,:;|!'()[] -"), set("mwMW%@")
_MARGIN = 16  # pixels around a drawing in a file
_SIZE = re.compile(r'viewBox="0 0 (\d+) (\d+)"')
_SIZED = re.compile(r'viewBox="[^"]*" width="\d+" height="\d+"')
_STYLE = (
    "svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"
    "text{{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}{rules}"
)


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An element; `content` is markup, attribute values are escaped, `class_` means class."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{clean(_value(value))}"'
        for key, value in attributes.items()
        if value not in (None, "")
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(x: float, y: float, content: str, /, **attributes: object) -> str:
    """A text element; the content is escaped."""
    return tag("text", clean(content), x=float(x), y=float(y), **attributes)


def clean(content: str) -> str:
    """Text for XML: escaped, with a space for every character that is not printable."""
    if not content.isprintable():
        content = "".join(c if c.isprintable() else " " for c in content)
    return escape(content)


def width_of(content: str, size: float = 12) -> float:
    """The width of a text in pixels, estimated rather too wide than too narrow."""
    units = sum(0.36 if c in NARROW else 0.92 if c in WIDE else 0.6 for c in content)
    return units * size


def shortened(content: str, room: float, size: float = 12) -> str:
    """The text, cut with an ellipsis where it is wider than `room`."""
    if width_of(content, size) <= room:
        return content
    while content and width_of(content + "…", size) > room:
        content = content[:-1]
    return content.rstrip(" ,(") + "…"


def path(
    points: Sequence[tuple[float, float]], *, closed: bool = False, **attributes: object
) -> str:
    """A line through points."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{steps}{'Z' if closed else ''}", **attributes)


def mark(look: Look, x: float, y: float, size: float = 4.2, title: str = "") -> str:
    """The mark of a mechanism; `title` is its tooltip."""
    hint = tag("title", clean(title)) if title else ""
    if look.shape == "circle":
        return tag("circle", hint, class_="mark", cx=float(x), cy=float(y), r=float(size))
    points = [(x + size * dx, y + size * dy) for dx, dy in _OUTLINES[look.shape]]
    steps = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    return tag("path", hint, class_="mark", d=f"M{steps}Z")


def _star() -> list[tuple[float, float]]:
    turns = [(1.35 if at % 2 == 0 else 0.55, math.pi * at / 5) for at in range(10)]
    return [(r * math.sin(a), -r * math.cos(a)) for r, a in turns]


def _cross(turn: float) -> list[tuple[float, float]]:
    arm = [(-0.4, -1.3), (0.4, -1.3), (0.4, -0.4), (1.3, -0.4), (1.3, 0.4), (0.4, 0.4)]
    arm += [(-x, -y) for x, y in arm]
    c, s = math.cos(turn), math.sin(turn)
    return [(c * x - s * y, s * x + c * y) for x, y in arm]


_OUTLINES = {
    "square": [(-0.95, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95)],
    "diamond": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
    "up": [(0, -1.25), (1.15, 0.85), (-1.15, 0.85)],
    "down": [(0, 1.25), (1.15, -0.85), (-1.15, -0.85)],
    "plus": _cross(0.0),
    "cross": _cross(math.pi / 4),
    "star": _star(),
}


def drawing(content: str, width: float, height: float, alt: str) -> str:
    """The outermost element."""
    return tag(
        "svg",
        tag("title", clean(alt)) + content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=int(width),
        height=round(height),
        role="img",
        class_="chart",
    )


def standalone(drawn: str, rules: str) -> str:
    """A drawing as a separate file: with its colours, a margin and a background."""
    style = _STYLE.format(light=variables(LIGHT), dark=variables(DARK), rules=rules)
    width, height = (int(side) + 2 * _MARGIN for side in _SIZE.findall(drawn)[0])
    place = {"x": -_MARGIN, "y": -_MARGIN, "width": width, "height": height}
    ground = tag("rect", class_="ground", **place)
    opening, end, rest = drawn.partition(">")
    box = f'viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" width="{width}" height="{height}"'
    return f"{_SIZED.sub(box, opening)}{end}<style>{style}</style>{ground}{rest}\n"

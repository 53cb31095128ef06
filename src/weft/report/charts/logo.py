"""A sequence logo: each base as tall as an answer rests on it, below the line where it is against.

(Schneider and Stephens 1990, https://doi.org/10.1093/nar/18.20.6097, whose heights are bits of
information; here they are the influences of one sequence.)
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.report.charts.svg import clean, drawing, path, tag, text

ROOM = 46.0  # pixels above the line of each row of letters, and below it
BASE = 11.0  # pixels of a letter's width
_LEFT, _TOP, _GAP = 46.0, 8.0, 18.0
_CAPITAL = 0.73  # height of a capital letter over the font's size
_COLOURS = {"A": "c2", "C": "c0", "G": "c3", "T": "c1"}


def logo(letters: str, influence: Sequence[float], width: int, alt: str) -> str:
    """Rows of letters, as many in each as the width holds; numbers count bases from 1."""
    per = max(10, int((width - _LEFT - 8) / BASE) // 10 * 10)
    largest = max((abs(value) for value in influence), default=0.0) or 1.0
    parts, top = [], _TOP
    for start in range(0, len(letters), per):
        middle = top + ROOM
        row = letters[start : start + per]
        end = _LEFT + BASE * len(row)
        parts.append(
            text(_LEFT - 8, middle + 4, f"{start + 1:,}", class_="tick", text_anchor="end")
        )
        parts.append(path([(_LEFT, middle), (end, middle)], class_="axis"))
        for place, letter in enumerate(row):
            value = influence[start + place]
            hint = f"{letter} at {start + place + 1:,}: {value:+.4f}"
            parts.append(_letter(letter, _LEFT + BASE * place, middle, value / largest, hint))
        top += 2 * ROOM + _GAP
    return drawing("".join(parts), width, top, alt)


def _letter(letter: str, x: float, middle: float, share: float, hint: str) -> str:
    """A letter stretched to its height; upright above the line and below it."""
    height = abs(share) * (ROOM - 2)
    if height < 0.5:
        return ""
    foot = middle if share > 0 else middle + height
    size = BASE * 1.25
    how = f"translate({x:.1f} {foot:.1f}) scale(1 {height / (size * _CAPITAL):.3f})"
    colour = _COLOURS.get(letter, "dense")
    shown = tag(
        "text",
        clean(letter),
        transform=how,
        style=f"font-size:{size:.1f}px;font-weight:700;fill:var(--c)",
        textLength=BASE - 1,
        lengthAdjust="spacingAndGlyphs",
    )
    return tag("g", tag("title", clean(hint)) + shown, class_=colour)

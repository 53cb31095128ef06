"""A sound over time: its spectrogram, and below it what an answer rests on, frame by frame."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from weft.pictures.drawing import png
from weft.report.charts.svg import clean, drawing, path, tag, text

UPPER, LOWER = 150.0, 90.0  # pixels of the two panels
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 12.0, 12.0, 22.0, 30.0, 26.0
_DARK, _BRIGHT = np.array([14, 20, 52]), np.array([255, 224, 120])


def spectrogram(
    levels: Sequence[Sequence[int]],
    influence: Sequence[float],
    seconds: float,
    answer: str,
    width: int,
    alt: str,
) -> str:
    """`levels` (frames, bands) from 0 to 255, low bands first; `influence` by model frame."""
    end, below = width - _RIGHT, _TOP + UPPER + _GAP
    data = base64.b64encode(png(_coloured(levels))).decode()
    parts = [
        text(_LEFT, _TOP - 8, "log-mel spectrogram, high pitch above", class_="name"),
        tag(
            "image",
            href=f"data:image/png;base64,{data}",
            x=_LEFT,
            y=_TOP,
            width=end - _LEFT,
            height=UPPER,
            preserveAspectRatio="none",
        ),
        text(
            _LEFT,
            below - 8,
            f"influence: above the line for {answer!r}, below it against",
            class_="name",
        ),
    ]
    parts += _bars(influence, end, below + LOWER / 2, seconds)
    for tenth in range(0, 11, 2):
        x = _LEFT + (end - _LEFT) * tenth / 10
        anchor = "start" if not tenth else "end" if tenth == 10 else "middle"
        said = f"{seconds * tenth / 10:.2f} s"
        parts.append(text(x, below + LOWER + 16, said, class_="tick", text_anchor=anchor))
    return drawing("".join(parts), width, below + LOWER + _BOTTOM, alt)


def _bars(influence: Sequence[float], end: float, middle: float, seconds: float) -> list[str]:
    """A bar for each frame, from the line in the middle."""
    largest = max((abs(value) for value in influence), default=0.0) or 1.0
    step = (end - _LEFT) / max(1, len(influence))
    found = [path([(_LEFT, middle), (end, middle)], class_="axis")]
    for place, value in enumerate(influence):
        x = _LEFT + (place + 0.5) * step
        tip = middle - value / largest * (LOWER / 2 - 2)
        hint = f"{seconds * (place + 0.5) / len(influence):.2f} s: {value:+.4f}"
        bar = path([(x, middle), (x, tip)], class_="line", style=f"stroke-width:{step * 0.8:.1f}")
        colour = "c1" if value > 0 else "c0"
        found.append(tag("g", tag("title", clean(hint)) + bar, class_=colour))
    return found


def _coloured(levels: Sequence[Sequence[int]]) -> np.ndarray:
    """(bands, frames, 3) uint8, the highest band first."""
    share = np.asarray(levels, dtype=np.float64).T[::-1, :, None] / 255.0
    return (_DARK + (_BRIGHT - _DARK) * share).round().astype(np.uint8)

"""A sound over time: its spectrogram, and below it what an answer rests on, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence

from weft.report.charts.svg import clean, drawing, path, tag, text

UPPER, LOWER = 150.0, 90.0  # pixels of the two panels
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 12.0, 12.0, 22.0, 30.0, 26.0


def spectrogram(
    image: str,
    influence: Sequence[float],
    seconds: float,
    answer: str,
    width: int,
    alt: str,
) -> str:
    """`image` is a PNG in base64, a pixel for each frame and band; `influence` by model frame."""
    end, below = width - _RIGHT, _TOP + UPPER + _GAP
    parts = [
        text(_LEFT, _TOP - 8, "log-mel spectrogram, high pitch above", class_="name"),
        tag(
            "image",
            href=f"data:image/png;base64,{image}",
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
        height = abs(value) / largest * (LOWER / 2 - 2)
        hint = f"{seconds * (place + 0.5) / len(influence):.2f} s: {value:+.4f}"
        bar = tag(
            "rect",
            tag("title", clean(hint)),
            class_="block",
            x=x - 0.4 * step,
            y=middle - height if value > 0 else middle,
            width=0.8 * step,
            height=height,
        )
        colour = "c1" if value > 0 else "c0"
        found.append(tag("g", bar, class_=colour))
    return found

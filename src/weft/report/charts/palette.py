"""Colours of reports, for light and dark, and how mechanisms are distinguished.

The series are Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), which colour-blind
readers can distinguish, darkened or lightened to a contrast of at least 3:1 with the background.
Colour is never the only cue: marks, dashes and names say the same. Dense attention has the colour
of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LIGHT = {
    "ground": "#fcfcfa",
    "card": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#5a626c",
    "line": "#dcdfe3",
    "grid": "#eceef0",
    "accent": "#0b5f96",
    "warm": "#a63f00",
    "series0": "#0072b2",
    "series1": "#d55e00",
    "series2": "#00835f",
    "series3": "#b8488a",
    "series4": "#a87000",
    "series5": "#2f8fcb",
    "series6": "#6a51a3",
    "series7": "#7c7034",
}
DARK = {
    "ground": "#121519",
    "card": "#191d22",
    "ink": "#e9ecef",
    "soft": "#a3acb6",
    "line": "#323942",
    "grid": "#252b32",
    "accent": "#7cc0f0",
    "warm": "#ff9d66",
    "series0": "#4da3e0",
    "series1": "#ff8547",
    "series2": "#2fc299",
    "series3": "#ea94c4",
    "series4": "#e6b13d",
    "series5": "#93d3fb",
    "series6": "#b3a0ea",
    "series7": "#c9bd78",
}
SERIES = 8
SHAPES = ("circle", "square", "diamond", "up", "down", "plus", "cross", "star")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Look:
    """How one mechanism is drawn everywhere."""

    colour: str  # the class that sets it
    shape: str
    dash: str = ""


def looks(labels: Sequence[str], dense: Sequence[str]) -> dict[str, Look]:
    """A look for each mechanism; colours repeat after eight, with other marks and dashes."""
    found = {label: Look("dense", "circle") for label in labels if label in dense}
    for at, label in enumerate(label for label in labels if label not in dense):
        turn = at // SERIES
        shape = SHAPES[(1 + at + 3 * turn) % len(SHAPES)]
        found[label] = Look(f"c{at % SERIES}", shape, DASHES[turn % len(DASHES)])
    return found


def variables(colours: dict[str, str]) -> str:
    """As CSS custom properties."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())

"""Pictures of a pattern: who reads whom, and how far influence reaches after some layers.

`density` is the numbers: the sequence is cut into stretches, and each pixel is the share of visible
pairs between two of them. The block calculus finds the pixels that are empty or full; only the
others are evaluated, so a picture of 65,536 tokens takes about as long as one of 4,096.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError, at_least
from weft.files import replacing
from weft.patterns.algebra import Pattern
from weft.patterns.derive import receptive_field
from weft.patterns.layout import layout
from weft.patterns.order import Order
from weft.patterns.region import Ints

Shares = NDArray[np.float32]

PIXELS = 1024  # the most a picture is wide
_EVALUATED = 1 << 28  # pairs evaluated for one picture; beyond, rows are sampled
_AT_ONCE = 1 << 22
_DOTS_PER_INCH = 200
_PANEL = PIXELS / _DOTS_PER_INCH  # inches: one pixel of the picture is one dot
_TICKS = (0.001, 0.01, 0.1, 0.5, 1.0)


def density(pattern: Pattern, n: int, pixels: int = PIXELS) -> Shares:
    """The share of visible pairs in each pixel: (p, p), p ≤ pixels, queries down, keys across.

    A pixel covers ⌈n / pixels⌉ × ⌈n / pixels⌉ pairs. Exact unless the picture would take more
    than 2^28 evaluations: then each stretch of queries is represented by some of its rows, and
    where that is not enough, each stretch of keys by some of its columns.
    """
    at_least(1, n=n, pixels=pixels)
    cell = -(-n // pixels)
    found = layout(pattern, Order(n), Order(n), n, cell)
    shares: Shares = np.zeros((found.rows, found.columns), dtype=np.float32)
    u, v = found.row_of, found.cols.astype(np.int64)
    shares[u[found.full], v[found.full]] = 1.0
    u, v = u[~found.full], v[~found.full]
    if not len(u):
        return shares
    most = max(1, _EVALUATED // (len(u) * cell))
    offsets = _spread(cell, most)
    keys = _spread(cell, max(1, _EVALUATED // len(u)))
    step = max(1, _AT_ONCE // (len(offsets) * len(keys)))
    for at in range(0, len(u), step):
        rows, cols = u[at : at + step], v[at : at + step]
        shares[rows, cols] = _evaluated(pattern, n, cell, rows, cols, offsets, keys)
    return shares


def _spread(cell: int, most: int) -> Ints:
    """All offsets within a pixel, or `most` of them, evenly."""
    return np.arange(min(cell, most)) * cell // min(cell, most)


def _evaluated(
    pattern: Pattern, n: int, cell: int, rows: Ints, cols: Ints, offsets: Ints, keys: Ints
) -> Shares:
    """Shares (pixels,), from the rows and keys of each stretch that these offsets name."""
    i = (rows[:, None] * cell + offsets)[:, :, None]
    j = (cols[:, None] * cell + keys)[:, None, :]
    inside = (i < n) & (j < n)
    seen = pattern.sees(np.minimum(i, n - 1), np.minimum(j, n - 1), n) & inside
    return (seen.sum((1, 2)) / inside.sum((1, 2))).astype(np.float32)


def overall(shares: Shares, n: int) -> float:
    """The share of the whole picture; the last row and column may cover fewer tokens."""
    sizes = _sizes(n, -(-n // len(shares)))
    return float(sizes @ shares @ sizes) / n**2


def _sizes(n: int, cell: int) -> Ints:
    return np.diff(np.append(np.arange(0, n, cell), n))


@lru_cache(maxsize=4)
def reach(pattern: Pattern, n: int, layers: int, *, heads: int = 1) -> Shares:
    """The share of pairs that influence each other after these layers, over all heads: (p, p)."""
    union = reduce(lambda a, b: a | b, (pattern.head(a, heads) for a in range(heads)))
    field = receptive_field(union, n, layers).numpy()
    cell = -(-n // PIXELS)
    edges, sizes = np.arange(0, n, cell), _sizes(n, cell)
    sums = np.add.reduceat(np.add.reduceat(field, edges, 0, np.int64), edges, 1)
    return (sums / (sizes[:, None] * sizes[None, :])).astype(np.float32)


def lines(shares: Shares) -> list[str]:
    """A picture in characters, two pixels in each: half-blocks, or a shade where both are seen."""
    if len(shares) % 2:
        shares = np.vstack((shares, np.zeros_like(shares[:1])))
    top, bottom = shares[0::2], shares[1::2]
    shade = np.select([(top + bottom) / 2 < edge for edge in (0.1, 0.4, 0.8)], list("░▒▓"), "█")
    alone = np.where(top > 0, "▀", np.where(bottom > 0, "▄", " "))
    return ["".join(row) for row in np.where((top > 0) & (bottom > 0), shade, alone)]


def shaded(shares: Any) -> Any:
    """Brightness in 0..1: the square root, and at least a fifth where anything is seen at all."""
    return np.where(shares > 0, np.maximum(np.sqrt(shares), 0.2), 0.0)


def save(
    pattern: Pattern, n: int, path: str | Path, *, heads: int = 1, layers: int | None = None
) -> None:
    """Write the picture as PNG or SVG, by the suffix: a panel per distinct head pattern.

    With `layers`, one more panel shows the receptive field after that many.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise WeftError(f"a picture is .png or .svg; got {str(path)!r}")
    figure = draw(pattern, n, heads=heads, layers=layers)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=_DOTS_PER_INCH)


def draw(pattern: Pattern, n: int, *, heads: int = 1, layers: int | None = None) -> Any:
    """The picture as a matplotlib figure."""
    figure_class = _matplotlib()
    groups = by_pattern(pattern, heads)
    panels = [(_panel_title(p, own, heads), density(p, n)) for p, own in groups]
    if layers is not None:
        count = "1 layer" if layers == 1 else f"{layers} layers"
        panels.append((f"reached after {count}", reach(pattern, n, layers, heads=heads)))
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    # Inches: panels with room for their titles and labels, a strip for the legend on the right.
    wide, high = _PANEL + 0.95, _PANEL + 1.1
    heading = wrap(str(pattern), int((across * wide + 1.0) * 9))
    top = 0.28 + 0.22 * len(heading)
    size = (across * wide + 1.0, down * high + top)
    figure = figure_class(figsize=size, dpi=_DOTS_PER_INCH, facecolor="white")
    corner = {"x": 0.85 / size[0], "y": 1 - 0.18 / size[1], "ha": "left", "va": "top"}
    figure.suptitle("\n".join(heading), **corner, size=13)
    image = None
    for at, (title, shares) in enumerate(panels):
        x, y = 0.85 + at % across * wide, size[1] - top - (at // across + 1) * high + 0.6
        box = (x / size[0], y / size[1], _PANEL / size[0], _PANEL / size[1])
        image = _panel(figure.add_axes(box), title, shares, n)
    x, y = across * wide + 0.1, size[1] - top - high + 0.6
    box = (x / size[0], y / size[1], 0.16 / size[0], _PANEL / size[1])
    _legend(figure, figure.add_axes(box), image)
    return figure


def by_pattern(pattern: Pattern, heads: int) -> list[tuple[Pattern, list[int]]]:
    """The distinct patterns of the heads, each with the heads that have it."""
    found: dict[Pattern, list[int]] = {}
    for a in range(heads):
        found.setdefault(pattern.head(a, heads), []).append(a)
    return list(found.items())


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise WeftError(
            "a picture needs matplotlib, which is not installed; pip install matplotlib"
        ) from cause
    return Figure


def _panel_title(pattern: Pattern, own: list[int], heads: int) -> str:
    if len(own) == heads:
        return "read in one layer"
    name = f"head {own[0]}" if len(own) == 1 else f"heads {own[0]}–{own[-1]}"
    return f"{name}: {pattern}"


def _panel(axes: Any, title: str, shares: Shares, n: int) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list(
        "weft", ["#d8e6f3", "#94bfdf", "#4a8cc4", "#1f5a9c", "#0d2f66"]
    ).with_extremes(bad="white")
    seen = np.ma.masked_equal(shares, 0.0)
    norm = PowerNorm(0.4, vmin=0.0, vmax=1.0)
    image = axes.imshow(
        seen, cmap=colours, norm=norm, extent=(0, n, n, 0), interpolation="nearest", aspect="equal"
    )
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.tick_params(labelsize=8)
    for side in axes.spines.values():
        side.set_color("#888888")
    note = f"{100 * overall(shares, n):.3g}% of pairs, {n:,} tokens"
    axes.set_title(f"{title}\n{note}", size=10, loc="left")
    return image


def _legend(figure: Any, axes: Any, image: Any) -> None:
    bar = figure.colorbar(image, cax=axes, ticks=list(_TICKS))
    bar.ax.set_yticklabels([f"{100 * tick:g}%" for tick in _TICKS], size=8)
    bar.ax.minorticks_off()
    bar.set_label("share of pairs that see each other", size=9)

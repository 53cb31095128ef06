"""What the growth of Pathfinder snakes reads: a drawing in integers, made once.

Directions are the pixels of a circle, so a dash has few shapes. Each is drawn once, here, in
floating point: the cells of the antialias grid that it occupies, and its ink. Ink is the share of
each cell that the dash covers, reduced along both axes with Lanczos-3,

    pixel_i = Σ_j L(t_ij) cell_j / Σ_j L(t_ij),   t_ij = (j + ½) / scale − (i + ½),
    L(t) = sinc(t) sinc(t / 3) for |t| < 3, otherwise 0.

An image is then a maximum of such stamps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from weft.arena.tasks.pathfinder.images import Drawing

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FINE = 8  # samples along one side of an antialias cell, to find its share
_LOBES = 3  # of the Lanczos kernel
_STRAIGHT = 1 << 16  # the weight of going straight on
_TIE = 1e-9  # so that rounding decides alike on every machine

# Columns of `GrowthPlan.shapes`, a row for each direction: offsets from the pivot.
START = 0  # (y, x) of the pixel where the dash begins
END = 2  # (y, x) of the pixel where it ends
STEP = 4  # (y, x) of the next pivot
ROOM = 6  # least (y, x) and greatest (y, x) of a pivot that keeps it inside
TOP, LEFT, BOTTOM, RIGHT = 10, 11, 12, 13  # of the cells of the dash and its margin
INK = 14  # its rows of `GrowthPlan.ink`: since, until
SPANS = 16  # first and last cell of each row, from the top on


class GrowthPlan(NamedTuple):
    """One drawing in integers; the D directions of margin k are first[k] .. first[k + 1] - 1."""

    size: int
    scale: int  # antialias cells along one side of a pixel
    seed_distance: int
    dashes: int
    distractor_dashes: int
    distractors: int
    first: Ints  # (margins + 1,)
    shapes: Ints  # (D, ·) see the columns above
    turns: Ints  # (D, ·, 2) directions that may follow, likeliest first, and their weights
    ink: Ints  # (·, 3) y, x and brightness of the pixels of each dash, then of a disc
    disc: int  # where the disc begins
    ring: Ints  # (·, 2) cells from the first seed to where the second may be

    @property
    def most_dashes(self) -> int:
        """Dashes in an image whose distractors all fit."""
        return 2 * self.dashes + self.distractors * self.distractor_dashes


@lru_cache(maxsize=32)
def plan_of(drawing: Drawing) -> GrowthPlan:
    """The tables of a drawing."""
    circles = [circle(drawing.dash_length + margin) for margin in drawing.margins]
    dashes = [
        Dash(towards, margin, drawing.dash_length, drawing.dash_thickness)
        for margin, ends in zip(drawing.margins, circles, strict=True)
        for towards in ends / np.linalg.norm(ends, axis=1, keepdims=True)
    ]
    brightness = 255 * drawing.snake_contrast * drawing.dash_contrast
    ink = [_ink(dash, brightness, drawing.antialias) for dash in dashes]
    disc = _ink(Disc(drawing.disc_radius), 255.0, drawing.antialias)
    return GrowthPlan(
        size=drawing.size,
        scale=drawing.antialias,
        seed_distance=drawing.seed_distance,
        dashes=drawing.contour_length,
        distractor_dashes=drawing.distractor_length,
        distractors=drawing.distractors,
        first=_bounds(circles),
        shapes=_shapes(drawing, dashes, np.concatenate(circles), _bounds(ink)),
        turns=_turns(dashes, drawing.continuity),
        ink=np.ascontiguousarray(np.concatenate([*ink, disc])),
        disc=sum(map(len, ink)),
        ring=circle(drawing.seed_distance) * drawing.antialias,
    )


class Dash(NamedTuple):
    """A rectangle that begins `margin` beyond the pivot, in direction `towards`."""

    towards: Floats  # (2,) of length 1
    margin: int
    length: int
    thickness: float

    @property
    def reach(self) -> int:
        """Pixels around the pivot that hold it."""
        return self.margin + self.length + int(np.ceil(self.thickness))

    def distance(self, y: Floats, x: Floats) -> Floats:
        """How far points lie outside; 0 inside."""
        v, u = self.towards
        along = np.abs(y * v + x * u - self.margin - self.length / 2) - self.length / 2
        across = np.abs(x * v - y * u) - self.thickness / 2
        return np.hypot(np.maximum(along, 0), np.maximum(across, 0))

    def cells(self, scale: int) -> Ints:
        """Antialias cells (·, 2) whose centre is in the dash or at most `margin` beside it."""
        corner = self.reach + self.margin
        at = _grid(corner, scale)
        near = self.distance(at[:, None], at) <= self.margin + _TIE
        return np.argwhere(near) - corner * scale


class Disc(NamedTuple):
    """A filled disc around the pixel."""

    radius: float

    @property
    def reach(self) -> int:
        """Pixels around the centre that hold it."""
        return int(np.ceil(self.radius))

    def distance(self, y: Floats, x: Floats) -> Floats:
        """How far points lie outside; 0 inside."""
        return np.maximum(np.hypot(y, x) - self.radius, 0)


def circle(radius: int) -> Ints:
    """Pixels (·, 2) whose distance from the origin rounds to the radius."""
    line = np.arange(-radius, radius + 1)
    squared = 4 * (line[:, None] ** 2 + line**2)
    on = ((2 * radius - 1) ** 2 < squared) & (squared < (2 * radius + 1) ** 2)
    return np.argwhere(on) - radius


def lanczos(pixels: int, scale: int) -> Floats:
    """The matrix (pixels, pixels · scale) that reduces one axis of an antialias grid."""
    cells = (np.arange(pixels * scale) + 0.5) / scale
    away = cells - (np.arange(pixels)[:, None] + 0.5)
    kernel = np.sinc(away) * np.sinc(away / _LOBES) * (np.abs(away) < _LOBES)
    return kernel / kernel.sum(1, keepdims=True)


def _ink(shape: Dash | Disc, brightness: float, scale: int) -> Ints:
    """Pixels that a shape lights up: (·, 3) of y, x and a brightness of 1 to 255."""
    fine = _grid(shape.reach, scale * _FINE)
    inside = shape.distance(fine[:, None], fine) <= _TIE
    shares = inside.reshape(len(fine) // _FINE, _FINE, -1, _FINE).mean((1, 3))
    corner = shape.reach + _LOBES
    reduce = lanczos(2 * corner + 1, scale)
    lit = brightness * (reduce @ np.pad(shares, _LOBES * scale) @ reduce.T)
    levels = np.clip(_nearest(lit), 0, 255)
    at = np.argwhere(levels)
    return np.column_stack([at - corner, levels[at[:, 0], at[:, 1]]])


def _shapes(drawing: Drawing, dashes: list[Dash], ends: Ints, ink: Ints) -> Ints:
    """The table of directions, (D, columns)."""
    scale = drawing.antialias
    low, high = drawing.padding * scale, (drawing.size - drawing.padding) * scale
    cells = [dash.cells(scale) for dash in dashes]
    shapes = np.zeros((len(dashes), SPANS + 2 * max(map(_height, cells))), np.int64)
    for i, (dash, occupied) in enumerate(zip(dashes, cells, strict=True)):
        least, greatest = occupied.min(0), occupied.max(0)
        shapes[i, START : START + 2] = _nearest(dash.towards * dash.margin) * scale
        shapes[i, END : END + 2] = ends[i] * scale
        shapes[i, STEP : STEP + 2] = _nearest(dash.towards * (dash.length + 2 * dash.margin))
        shapes[i, STEP : STEP + 2] *= scale
        shapes[i, ROOM : ROOM + 4] = [*(low - least), *(high - 1 - greatest)]
        shapes[i, TOP : TOP + 4] = [*least, *greatest]
        shapes[i, INK : INK + 2] = ink[i : i + 2]
        shapes[i, SPANS : SPANS + 2 * _height(occupied)] = _spans(occupied)
    return shapes


def _height(cells: Ints) -> int:
    return int(np.ptp(cells[:, 0])) + 1


def _spans(cells: Ints) -> list[int]:
    """First and last cell of each row: all there is to know, the cells being convex."""
    spans = []
    for row in range(cells[:, 0].min(), cells[:, 0].max() + 1):
        columns = cells[cells[:, 0] == row, 1]
        assert np.ptp(columns) == len(columns) - 1
        spans += [columns.min(), columns.max()]
    return spans


def _turns(dashes: list[Dash], continuity: float) -> Ints:
    """Directions that may follow each, likeliest first, and their weights: (D, ·, 2)."""
    towards = np.array([dash.towards for dash in dashes])
    margins = np.array([dash.margin for dash in dashes])
    turn = np.arccos(np.clip(towards @ towards.T, -1, 1))
    weights = _nearest(_STRAIGHT * np.cos(np.minimum(continuity * turn, np.pi / 2)) ** 2)
    weights[margins[:, None] != margins] = 0
    most = int((weights > 0).sum(1).max())
    order = np.argsort(-weights, axis=1, kind="stable")[:, :most]
    return np.stack([order, np.take_along_axis(weights, order, 1)], 2)


def _grid(reach: int, scale: int) -> Floats:
    """Centres of the cells of pixels -reach .. reach, in pixels."""
    return (np.arange((2 * reach + 1) * scale) + 0.5) / scale - reach - 0.5


def _nearest(x: Floats) -> Ints:
    return np.floor(x + 0.5 + _TIE).astype(np.int64)


def _bounds(parts: list[Ints]) -> Ints:
    return np.cumsum([0, *map(len, parts)])

"""The tables of a Pathfinder drawing against their definitions."""

import dataclasses
import math

import numpy as np
import pytest

from weft.arena.tasks.pathfinder.images import Drawing
from weft.arena.tasks.pathfinder.plan import (
    BOTTOM,
    END,
    LEFT,
    RIGHT,
    ROOM,
    SPANS,
    START,
    STEP,
    TOP,
    circle,
    lanczos,
    plan_of,
)

SIZES = (32, 64, 128, 256)


def kernel(t: float) -> float:
    """Lanczos-3 from its definition."""
    if t == 0:
        return 1.0
    x = math.pi * t
    return 3 * math.sin(x) * math.sin(x / 3) / (x * x) if abs(t) < 3 else 0.0


def reduced(cells: np.ndarray, scale: int) -> np.ndarray:
    """A square grid reduced by loops over the definition."""
    n = len(cells) // scale
    rows = np.zeros((n, len(cells)))
    for i in range(n):
        taps = [kernel((j + 0.5) / scale - (i + 0.5)) for j in range(len(cells))]
        rows[i] = np.array(taps) / sum(taps)
    return np.einsum("ij,jk,lk->il", rows, cells, rows)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_the_reduction_is_lanczos_3(scale):
    cells = np.random.default_rng(0).random((12 * scale, 12 * scale))
    matrix = lanczos(12, scale)
    truth = reduced(cells, scale)
    np.testing.assert_allclose(matrix @ cells @ matrix.T, truth, atol=1e-12)
    box = np.kron(np.eye(12), np.full((1, scale), 1 / scale))
    assert scale == 1 or not np.allclose(box @ cells @ box.T, truth, atol=0.05)


def test_the_reduction_agrees_with_pillow():
    image = pytest.importorskip("PIL.Image", reason="pillow comes with matplotlib, an extra")
    cells = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    theirs = image.fromarray(cells).resize((32, 32), image.Resampling.LANCZOS)
    matrix = lanczos(32, 2)
    np.testing.assert_allclose(matrix @ cells @ matrix.T, np.asarray(theirs), atol=1e-5)


@pytest.mark.parametrize("radius", [1, 3, 8, 27])
def test_a_circle_is_the_ring_of_its_rounded_radius(radius):
    pixels = {tuple(pixel) for pixel in circle(radius)}
    around = range(-radius - 2, radius + 3)
    assert pixels == {(y, x) for y in around for x in around if round(math.hypot(y, x)) == radius}
    angles = np.sort(np.arctan2(*circle(radius).T))
    assert np.diff(angles).min() > 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_a_dash_may_come_as_near_to_the_border_as_the_padding(size, padding):
    """Not one pixel nearer, and not one less: on all four sides."""
    drawing = dataclasses.replace(Drawing.of(size=size), padding=padding)
    shapes, scale = plan_of(drawing).shapes, drawing.antialias
    low, high = shapes[:, ROOM : ROOM + 2], shapes[:, ROOM + 2 : ROOM + 4]
    least, greatest = shapes[:, [TOP, LEFT]], shapes[:, [BOTTOM, RIGHT]]
    assert (low + least == padding * scale).all()
    assert (high + greatest == (size - padding) * scale - 1).all()


@pytest.mark.parametrize("size", SIZES)
def test_a_dash_begins_and_ends_where_its_direction_says(size):
    drawing = Drawing.of(size=size)
    plan, scale = plan_of(drawing), drawing.antialias
    for k, margin in enumerate(drawing.margins):
        shapes = plan.shapes[plan.first[k] : plan.first[k + 1]] / scale
        ends = shapes[:, END : END + 2]
        unit = ends / np.linalg.norm(ends, axis=1, keepdims=True)
        length = drawing.dash_length
        near = {START: margin, END: margin + length, STEP: 2 * margin + length}
        for column, far in near.items():
            assert np.abs(shapes[:, column : column + 2] - far * unit).max() <= 0.5


@pytest.mark.parametrize("size", SIZES)
def test_a_dash_occupies_what_is_within_its_margin(size):
    drawing = Drawing.of(size=size)
    plan = plan_of(drawing)
    for k, margin in enumerate(drawing.margins):
        for shape in plan.shapes[plan.first[k] : plan.first[k + 1] : 3]:
            away = distances(shape[END : END + 2], margin, drawing)
            assert occupied(shape) == cells_within(away, margin)
            assert occupied(shape) != cells_within(away, margin + 0.5)


def occupied(shape: np.ndarray) -> set[tuple[int, int]]:
    """The cells that a row of the table lists."""
    cells = set()
    for row in range(shape[TOP], shape[BOTTOM] + 1):
        left, right = shape[SPANS + 2 * (row - shape[TOP]) :][:2]
        assert shape[LEFT] <= left <= right <= shape[RIGHT]
        cells |= {(row, column) for column in range(left, right + 1)}
    return cells


def distances(end: np.ndarray, margin: int, drawing: Drawing) -> np.ndarray:
    """How far cells -64 .. 63 (·, ·) are from a dash, through its four corners."""
    unit = end / np.hypot(*end)
    side = np.array([unit[1], -unit[0]]) * drawing.dash_thickness / 2
    begin, stop = unit * margin, unit * (margin + drawing.dash_length)
    corners = [begin + side, stop + side, stop - side, begin - side]
    at = (np.arange(-64, 64) + 0.5) / drawing.antialias - 0.5
    points = np.stack(np.meshgrid(at, at, indexing="ij"), -1)
    away, inside = np.full((128, 128), np.inf), np.ones((128, 128), bool)
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        share = np.clip((points - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
        away = np.minimum(away, np.linalg.norm(points - a - share[..., None] * (b - a), axis=-1))
        turned = (b - a)[0] * (points - a)[..., 1] - (b - a)[1] * (points - a)[..., 0]
        inside &= turned <= 1e-9 if side[0] * unit[1] - side[1] * unit[0] > 0 else turned >= -1e-9
    return np.where(inside, 0, away)


def cells_within(away: np.ndarray, margin: float) -> set[tuple[int, int]]:
    return {(y - 64, x - 64) for y, x in np.argwhere(away <= margin + 1e-9).tolist()}


@pytest.mark.parametrize("size", SIZES)
def test_turns_are_weighed_by_their_cosine(size):
    drawing = Drawing.of(size=size)
    plan = plan_of(drawing)
    ends = plan.shapes[:, END : END + 2]
    margin_of = np.searchsorted(plan.first, np.arange(len(ends)), "right")
    for before in range(0, len(ends), 5):
        seen = {d: w for d, w in plan.turns[before] if w}
        assert list(seen.values()) == sorted(seen.values(), reverse=True)
        for after in np.flatnonzero(margin_of == margin_of[before]):
            cross, dot = np.linalg.det(ends[[before, after]]), ends[before] @ ends[after]
            turn = abs(math.atan2(cross, dot))
            weight = math.cos(min(drawing.continuity * turn, math.pi / 2)) ** 2
            assert abs(seen.pop(after, 0) / 65536 - weight) < 1e-5
        assert not seen

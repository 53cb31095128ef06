"""Pathfinder images, checked by hand from their anatomy and from their pixels."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.arena.tasks.pathfinder.images import Anatomy, Drawing, anatomy, draw
from weft.errors import WeftError

SIZES = (32, 64, 128, 256)
DASHES = (2, 3, 4, 6, 9, 14)
HARD = Drawing.of(size=32)

# Long Range Arena's notes on its data, with the defaults of the generator that it names.
PUBLISHED = {
    32: dict(padding=1, dash_length=2, dash_thickness=0.5, margins=(1,), seed_distance=7,
             disc_radius=1.5, continuity=1.0, snake_contrast=2, dash_contrast=0.75,
             distractors=20 // 4),
    64: dict(padding=1, dash_length=5, dash_thickness=1, margins=(1,), seed_distance=12,
             disc_radius=2.5, continuity=1.8, snake_contrast=0.8, dash_contrast=1,
             distractors=22 // 4),
    128: dict(padding=1, dash_length=5, dash_thickness=1.5, margins=(2, 3), seed_distance=20,
              disc_radius=3, continuity=1.8, snake_contrast=0.9, dash_contrast=1,
              distractors=35 // 4),
    256: dict(padding=22, dash_length=5, dash_thickness=2, margins=(3,), seed_distance=27,
              disc_radius=5, continuity=1.8, snake_contrast=1, dash_contrast=1,
              distractors=30 // 4),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_the_settings_are_the_published_ones(size):
    rest = dict(size=size, contour_length=14, distractor_length=4, antialias=2)
    assert dataclasses.asdict(Drawing.of(size=size)) == PUBLISHED[size] | rest
    shares = {dashes: Drawing.of(size=size, dashes=dashes) for dashes in DASHES}
    assert [each.distractor_length for each in shares.values()] == [1, 1, 1, 2, 3, 4]
    whole = {32: 20, 64: 22, 128: 35, 256: 30}[size]
    assert [each.distractors for each in shares.values()] == [
        whole // n for n in (1, 1, 1, 2, 3, 4)
    ]


def rectangles(drawing: Drawing, dashes: np.ndarray) -> np.ndarray:
    """Corners (dashes, 4, 2), in order around, of dashes (·, 2, 2)."""
    begin, end = dashes.reshape(-1, 2, 2).swapaxes(0, 1)
    unit = (end - begin) / np.linalg.norm(end - begin, axis=1, keepdims=True)
    side = unit[:, ::-1] * [1, -1] * drawing.dash_thickness / 2
    return np.stack([begin + side, end + side, end - side, begin - side], 1)


def gaps(corners: np.ndarray) -> np.ndarray:
    """Distances (dashes, dashes) between rectangles that do not cross: a corner to an edge."""
    points, a = corners[:, None, :, None], corners[None, :, None]
    edge = np.roll(corners, -1, 1)[None, :, None] - a
    share = np.clip(((points - a) * edge).sum(-1) / (edge**2).sum(-1), 0, 1)
    away = np.linalg.norm(points - a - share[..., None] * edge, axis=-1).min((2, 3))
    return np.minimum(away, away.T)


def check_discs(drawing: Drawing, seen: Anatomy) -> None:
    """Discs sit within a pixel's half diagonal of the ends that the label says."""
    ends = np.stack([seen.snakes[:, 0, 0], seen.snakes[:, -1, 1]], 1)
    away = np.linalg.norm(ends[:, :, None] - seen.discs, axis=-1)  # (snake, end, disc)
    on = away <= 0.5**0.5
    assert on.sum() == 2, "each disc is on one end"
    snake, end, disc = np.nonzero(on)
    assert sorted(disc) == [0, 1]
    assert sorted(end) == [0, 1]
    assert (snake[0] == snake[1]) == (seen.label == 1), "the discs contradict the label"


def check_chains(drawing: Drawing, seen: Anatomy) -> None:
    """Dashes have their length, follow each other at the gap, and turn no more than they may."""
    for snake in [*seen.snakes, *seen.distractors]:
        run = snake[:, 1] - snake[:, 0]
        assert np.allclose(np.linalg.norm(run, axis=1), drawing.dash_length)
        unit = run / drawing.dash_length
        meet = snake[:-1, 1] + unit[:-1] * seen.margin - (snake[1:, 0] - unit[1:] * seen.margin)
        assert np.linalg.norm(meet, axis=1).max(initial=0) <= 0.5**0.5, "the pivots are apart"
        turn = np.arccos(np.clip((unit[1:] * unit[:-1]).sum(1), -1, 1))
        assert turn.max(initial=0) < np.pi / 2 / drawing.continuity, "a turn is too sharp"
    begin = seen.snakes[:, 0, 0]
    # A pixel stands for the exact beginning, half a diagonal away at most.
    assert abs(np.linalg.norm(begin[0] - begin[1]) - drawing.seed_distance) < 2 * 0.5**0.5 + 0.5
    inside = np.minimum(begin[0], drawing.size - 1 - begin[0]).min()
    assert inside >= 2 * drawing.seed_distance - 0.5**0.5


def check_apart(drawing: Drawing, seen: Anatomy) -> None:
    """Dashes keep off each other and off the border, as far as the antialias grid can tell."""
    snakes = [*seen.snakes, *seen.distractors]
    corners = rectangles(drawing, np.concatenate(snakes))
    cell = 0.5**0.5 / drawing.antialias
    away = gaps(corners)
    number = np.cumsum([0, *map(len, snakes)])
    for first in range(len(away)):
        away[first, first] = np.inf
        if first + 1 not in number:
            away[first, first + 1] = away[first + 1, first] = np.inf
    assert away.min() > 2 * seen.margin - 2 * cell, "two dashes are too close"
    border = np.minimum(corners + 0.5, drawing.size - 0.5 - corners).min()
    assert border > drawing.padding + seen.margin - cell, "a dash is too close to the border"


def check_picture(drawing: Drawing, seen: Anatomy) -> None:
    """The pixels are those of the dashes and discs drawn again, to within rounding."""
    assert np.abs(redrawn(drawing, seen) - seen.image).max() < 0.501, "the picture differs"


CHECKS = [check_discs, check_chains, check_apart]


def redrawn(drawing: Drawing, seen: Anatomy, fine: int = 8) -> np.ndarray:
    """The image from its anatomy: half planes, averaged over antialias cells, Lanczos, maximum."""
    size, scale = drawing.size, drawing.antialias
    at = (np.arange(size * scale * fine) + 0.5) / (scale * fine) - 0.5
    away = (np.arange(size * scale) + 0.5) / scale - (np.arange(size)[:, None] + 0.5)
    reduce = np.where(np.abs(away) < 3, np.sinc(away) * np.sinc(away / 3), 0)
    whole = reduce[size // 2].sum()  # away from the border, where the kernel is not cut
    image = np.zeros((size, size))

    def add(corners, level, radius=None):
        low = np.maximum(np.floor(corners.min(0)).astype(int) - 1, 0)
        high = np.minimum(np.ceil(corners.max(0)).astype(int) + 2, size)
        y, x = (at[a * scale * fine : b * scale * fine] for a, b in zip(low, high, strict=True))
        inside = np.ones((len(y), len(x)), bool)
        if radius is not None:
            inside = np.hypot(y[:, None] - corners[0, 0], x - corners[0, 1]) <= radius
        else:
            centre = corners.mean(0)
            for a, b in zip(corners, np.roll(corners, -1, 0), strict=True):
                normal = np.array([b[1] - a[1], a[0] - b[0]])
                normal *= np.sign(normal @ (centre - a))
                inside &= (y[:, None] - a[0]) * normal[0] + (x - a[1]) * normal[1] >= 0
        shares = inside.reshape(len(y) // fine, fine, -1, fine).mean((1, 3))
        rows, columns = (reduce[:, a * scale : b * scale] for a, b in zip(low, high, strict=True))
        lit = rows @ shares @ columns.T / whole**2
        np.maximum(image, np.clip(level * lit, 0, 255), out=image)

    dashes = np.concatenate([*seen.snakes, *seen.distractors])
    for corners in rectangles(drawing, dashes):
        add(corners, 255 * drawing.snake_contrast * drawing.dash_contrast)
    for disc in seen.discs.astype(float):
        spread = disc + np.array([[0, 0], [-1, -1], [1, 1]]) * drawing.disc_radius
        add(spread, 255, drawing.disc_radius)
    return image


@pytest.mark.parametrize("dashes", DASHES)
@pytest.mark.parametrize("size", SIZES)
def test_images_keep_the_rules(size, dashes):
    drawing = Drawing.of(size=size, dashes=dashes)
    for index in range(8 if size != 64 else 3):
        seen = anatomy(drawing, 1, index)
        for check in CHECKS:
            check(drawing, seen)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**64), index=st.integers(0, 2**32 - 1))
def test_any_image_keeps_the_rules(seed, index):
    seen = anatomy(HARD, seed, index)
    for check in CHECKS:
        check(HARD, seen)
    images, labels = draw(HARD, seed, index, 1)
    assert np.array_equal(images[0], seen.image)
    assert labels.tolist() == [seen.label]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_match_the_anatomy(size):
    drawing = Drawing.of(size=size, dashes=9)
    for index in range(2):
        check_picture(drawing, anatomy(drawing, 2, index))


def test_eight_samples_along_a_cell_come_near_its_exact_area():
    seen = anatomy(HARD, 2, 0)
    assert np.abs(redrawn(HARD, seen, fine=64) - seen.image).max() < 10


def wrong_label(seen):
    return dataclasses.replace(seen, label=1 - seen.label)


def disc_astray(seen):
    return dataclasses.replace(seen, discs=seen.discs + np.array([[0, 0], [2, 0]]))


def crossing(seen):
    return dataclasses.replace(seen, snakes=seen.snakes[[0, 0]] + [[[[0.0]]], [[[1.3]]]])


def off_the_edge(seen):
    low = min(seen.snakes.min(), seen.distractors.min(initial=np.inf))
    return dataclasses.replace(
        seen, snakes=seen.snakes - low, distractors=seen.distractors - low, pivots=seen.pivots
    )


def torn(seen):
    snakes = seen.snakes.copy()
    snakes[0, 3:] += 1.5
    return dataclasses.replace(seen, snakes=snakes)


def kinked(seen):
    snakes = seen.snakes.copy()
    snakes[1, 2] = snakes[1, 2, ::-1]
    return dataclasses.replace(seen, snakes=snakes)


def one_dash_less(seen):
    return dataclasses.replace(seen, distractors=seen.distractors[:-1])


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (check_discs, wrong_label),
        (check_discs, disc_astray),
        (check_chains, torn),
        (check_chains, kinked),
        (check_apart, crossing),
        (check_apart, off_the_edge),
        (check_picture, disc_astray),
        (check_picture, torn),
        (check_picture, one_dash_less),
    ],
)
def test_the_checks_find_a_broken_image(check, broken):
    seen = anatomy(HARD, 3, 0)
    check(HARD, seen)
    assert len(seen.distractors)
    with pytest.raises(AssertionError):
        check(HARD, broken(seen))


def joined(image: np.ndarray, discs: np.ndarray, reach: float) -> bool:
    """Whether a flood from one disc over lit pixels, each `reach` wide, arrives at the other."""
    span = int(reach)
    around = [(y, x) for y in range(-span, span + 1) for x in range(-span, span + 1)]
    lit, wide = image > 90, np.zeros(image.shape, bool)
    for y, x in around:
        if np.hypot(y, x) <= reach:
            wide |= np.roll(lit, (y, x), (0, 1))
    flood = np.zeros(image.shape, bool)
    flood[tuple(discs[0])] = True
    while True:
        more = flood.copy()
        for axis in (0, 1):
            more |= np.roll(flood, 1, axis) | np.roll(flood, -1, axis)
        more &= wide
        if (more == flood).all():
            return bool(flood[tuple(discs[1])])
        flood = more


def test_pixels_alone_show_the_label():
    plain = dataclasses.replace(
        Drawing.of(size=128, dashes=6), margins=(3,), distractors=0, padding=8
    )
    labels = []
    for index in range(60):
        seen = anatomy(plain, 4, index)
        first, second = (rectangles(plain, snake) for snake in seen.snakes)
        between = gaps(np.concatenate([first, second]))[:6, 6:].min()
        if between > 2 * seen.margin + 6:  # else the flood would jump between the snakes
            assert joined(seen.image, seen.discs, seen.margin + 1) == bool(seen.label)
            labels.append(seen.label)
    assert 10 < sum(labels) < len(labels) - 10


def test_images_depend_on_their_number_alone():
    images, labels = draw(HARD, 9, 0, 150)
    for first, count, threads in [(0, 150, 4), (0, 150, 16), (37, 1, 1), (60, 90, 2), (149, 1, 3)]:
        part, which = draw(HARD, 9, first, count, threads=threads)
        assert np.array_equal(part, images[first : first + count])
        assert np.array_equal(which, labels[first : first + count])
    with ThreadPoolExecutor(6) as pool:
        parts = pool.map(lambda first: draw(HARD, 9, first, 25, threads=2)[0], range(0, 150, 25))
        assert np.array_equal(np.concatenate([*parts]), images)
    assert len({image.tobytes() for image in images}) == 150
    assert not np.array_equal(draw(HARD, 10, 0, 150)[0], images)
    assert not np.array_equal(draw(Drawing.of(size=32, dashes=9), 9, 0, 150)[0], images)


def test_images_are_drawn_into_what_is_given(tmp_path):
    out = np.memmap(tmp_path / "images", np.uint8, "w+", shape=(5, 32, 32))
    out[:] = 7
    images, labels = draw(HARD, 0, 3, 5, out=out)
    expected, _ = draw(HARD, 0, 3, 5)
    assert np.shares_memory(images, out)
    assert np.array_equal(out, expected)
    assert (images.dtype, labels.dtype, labels.shape) == (np.uint8, np.int64, (5,))
    assert [each.shape for each in draw(HARD, 0, 0, 0)] == [(0, 32, 32), (0,)]


def accuracy(feature: np.ndarray, labels: np.ndarray) -> float:
    """What the best threshold of one half scores on the other half."""
    half = len(labels) // 2
    cuts = np.quantile(feature[:half], np.linspace(0, 1, 41))
    right = [((feature[:half] > cut) == labels[:half]).mean() for cut in cuts]
    best = int(np.argmax(np.abs(np.array(right) - 0.5)))
    guess = (feature[half:] > cuts[best]) == (right[best] > 0.5)
    return float((guess == labels[half:]).mean())


@pytest.mark.parametrize("size", [32, 128])
def test_labels_are_balanced_and_no_simple_number_tells_them(size):
    seen = [anatomy(Drawing.of(size=size), 5, index) for index in range(1600)]
    labels = np.array([each.label for each in seen])
    apart = np.array([np.linalg.norm(each.discs[0] - each.discs[1]) for each in seen])
    light = np.array([each.image.mean() for each in seen])
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    assert accuracy(apart, labels) < 0.58
    assert accuracy(light, labels) < 0.56
    assert accuracy(apart, apart > np.median(apart)) > 0.9
    if size == 128:
        margins = np.array([each.margin for each in seen])
        assert abs((margins == 3).mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5


def test_an_impossible_setting_ends_in_an_error():
    drawing = Drawing.of(size=32, dashes=60)
    with pytest.raises(WeftError, match=r"60 dashes did not fit into 32 × 32.*fewer dashes"):
        draw(drawing, 0, 0, 500, threads=2)
    with pytest.raises(WeftError, match="image 8"):
        anatomy(drawing, 0, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Drawing.of(size=48), "published sizes are 32, 64, 128, 256; got size=48"),
        (lambda: Drawing.of(size=32, dashes=1), "contour_length is at least 2; got 1"),
        (lambda: dataclasses.replace(HARD, size=28), "size is above 28"),
        (lambda: dataclasses.replace(HARD, margins=(0,)), "each at least 1"),
        (lambda: dataclasses.replace(HARD, margins=[1]), "a tuple"),
        (lambda: dataclasses.replace(HARD, dash_thickness=0.0), "above 0"),
        (lambda: dataclasses.replace(HARD, continuity=float("nan")), "continuity"),
        (lambda: draw(HARD, 0, 0, 1, threads=0), "threads is at least 1"),
        (lambda: draw(HARD, 0, 0, -1), "count is at least 0"),
        (lambda: draw(HARD, -1, 0, 1), "seed is at least 0"),
        (lambda: draw(HARD, 0, 2**32 - 1, 2), "numbered from 0"),
        (lambda: draw(HARD, 0, 0, 2, out=np.zeros((2, 32, 32))), "uint8 array of shape"),
        (lambda: draw(HARD, 0, 0, 1, out=np.zeros((2, 32, 32), np.uint8)), r"\(1, 32, 32\)"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(WeftError, match=message):
        call()

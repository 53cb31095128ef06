"""Palettes: fixed points of k-means, against plain loops, and never worse than an even grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.arena.data.palette import nearest, palette
from weft.errors import WeftError

RNG = np.random.default_rng(0)


def blobs(centres, each=40, spread=6):
    noise = RNG.integers(-spread, spread + 1, (len(centres), each, 3))
    return (np.array(centres)[:, None] + noise).clip(0, 255).astype(np.uint8).reshape(-1, 3)


def error(pixels, colours):
    return ((pixels.astype(float) - colours[nearest(pixels, colours)]) ** 2).sum()


def by_loop(pixels, colours):
    """The nearest colour of each pixel, one by one."""
    found = []
    for pixel in pixels.astype(float):
        distances = [((pixel - colour) ** 2).sum() for colour in colours.astype(float)]
        found.append(int(np.argmin(distances)))
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 99))
def test_the_nearest_colour(colours, seed):
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (30, 3), dtype=np.uint8)
    # Whole numbers, so that ties are ties in any order of summing.
    chosen = draw.integers(0, 256, (colours, 3)).astype(np.float32)
    assert nearest(pixels, chosen).tolist() == by_loop(pixels, chosen)
    assert nearest(pixels.reshape(5, 6, 3), chosen).shape == (5, 6)


def test_few_colours_are_found_exactly():
    colours = RNG.integers(0, 256, (12, 3), dtype=np.uint8)
    pixels = colours[RNG.integers(0, 12, 500)]
    found = palette(pixels, len(np.unique(pixels, axis=0)))
    assert error(pixels, found) == 0
    again = found[nearest(pixels, found)]
    assert np.array_equal(again, pixels)


def test_blobs_have_their_means():
    centres = [(30, 30, 30), (220, 40, 40), (40, 220, 40), (220, 220, 230)]
    pixels = blobs(centres)
    found = palette(pixels, 4)
    truth = np.array([pixels[i * 40 : (i + 1) * 40].mean(0) for i in range(4)])
    for mean in truth:
        assert np.abs(found - mean).sum(1).min() < 1e-3
    brightness = found @ np.array([0.2989, 0.587, 0.114])
    assert (np.diff(brightness) >= 0).all()


def test_each_colour_is_the_mean_of_its_pixels():
    pixels = RNG.integers(0, 256, (400, 3), dtype=np.uint8)
    found = palette(pixels, 8)
    own = nearest(pixels, found)
    moved = np.array([pixels[own == i].mean(0) for i in range(8)])
    # Lloyd has come to rest, or almost, after its rounds.
    assert error(pixels, moved.astype(np.float32)) > 0.98 * error(pixels, found)
    grid = np.array(
        [(r, g, b) for r in (64, 192) for g in (64, 192) for b in (64, 192)], np.float32
    )
    assert error(pixels, found) < error(pixels, grid)
    assert error(pixels, found + 20) > error(pixels, found)


def test_the_seed_decides():
    pixels = RNG.integers(0, 256, (300, 3), dtype=np.uint8)
    assert np.array_equal(palette(pixels, 6, seed=1), palette(pixels, 6, seed=1))
    assert not np.array_equal(palette(pixels, 6, seed=1), palette(pixels, 6, seed=2))


def test_what_is_no_palette_says_so():
    with pytest.raises(WeftError, match=r"uint8 \(n, 3\)"):
        palette(np.zeros((4, 3)), 1)
    with pytest.raises(WeftError, match="as many as the pixels have"):
        palette(np.zeros((4, 3), np.uint8), 2)

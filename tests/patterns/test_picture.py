"""Pictures against the mask itself, counted pair by pair."""

import sys

import numpy as np
import pytest

from weft.errors import WeftError
from weft.patterns import Causal, Global, PerHead, RandomBlocks, Sliding, Strided, picture
from weft.patterns.derive import mask

PATTERNS = [
    Sliding(9),
    Causal() & (Sliding(5) | Strided(7)),
    Sliding(3) | Global(first=2, last=1),
    RandomBlocks(2, block=8, seed=1) | Sliding(2),
]


def shares_by_hand(seen, cell):
    """The share of each square of the mask, one square at a time."""
    n = len(seen)
    edges = range(0, n, cell)
    return np.array([[seen[i : i + cell, j : j + cell].mean() for j in edges] for i in edges])


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("n", "pixels", "cell"), [(64, 64, 1), (64, 16, 4), (50, 8, 7), (1, 9, 1)])
def test_density_is_the_share_of_visible_pairs(pattern, n, pixels, cell):
    seen = mask(pattern, n)[0].numpy()
    found = picture.density(pattern, n, pixels)
    assert found.shape[0] <= pixels
    np.testing.assert_allclose(found, shares_by_hand(seen, cell), atol=1e-6)
    assert picture.overall(found, n) == pytest.approx(seen.mean(), abs=1e-6)


def test_density_by_some_rows_is_still_close(monkeypatch):
    """Beyond the budget a stretch is represented by some rows; each row counts all its keys."""
    exact = picture.density(Strided(5), 600, 60)
    rough = picture.density(Sliding(40), 600, 60)
    monkeypatch.setattr(picture, "_EVALUATED", 60 * 60 * 10 * 3)
    np.testing.assert_allclose(picture.density(Strided(5), 600, 60), exact, atol=1e-6)
    monkeypatch.setattr(picture, "_EVALUATED", 1)
    assert np.abs(picture.density(Sliding(40), 600, 60) - rough).max() < 0.6
    assert ((picture.density(Sliding(40), 600, 60) > 0) == (rough > 0)).mean() > 0.95


def reached_by_hand(seen, layers):
    reach = np.eye(len(seen), dtype=bool)
    for _ in range(layers):
        reach = np.array([seen[reach[i]].any(axis=0) for i in range(len(seen))])
    return reach


def test_reach_joins_the_heads():
    n, layers = 40, 2
    heads = [Causal() & Sliding(3), Causal() & Strided(6)]
    seen = np.logical_or(*(mask(head, n)[0].numpy() for head in heads))
    found = picture.reach(PerHead(*heads), n, layers, heads=4)
    np.testing.assert_array_equal(found, reached_by_hand(seen, layers))


def test_reach_is_pooled_to_pixels(monkeypatch):
    monkeypatch.setattr(picture, "PIXELS", 10)
    seen = mask(Sliding(4), 25)[0].numpy()
    found = picture.reach(Sliding(4), 25, 3)
    np.testing.assert_allclose(found, shares_by_hand(reached_by_hand(seen, 3), 3), atol=1e-6)


def test_lines_put_two_pixels_in_a_character():
    shares = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0.01, 0.3, 0.6, 0]], dtype=np.float32)
    assert picture.lines(shares) == ["▀▄ █", "▀▀▀ "]
    assert picture.lines(np.full((2, 1), 0.05)) == ["░"]
    assert picture.lines(np.full((2, 1), 0.3)) == ["▒"]
    assert picture.lines(np.full((2, 1), 0.7)) == ["▓"]


def test_heads_are_grouped_by_pattern():
    near, far = Sliding(3), Strided(4)
    assert picture.by_pattern(PerHead(near, far), 4) == [(near, [0, 1]), (far, [2, 3])]
    assert picture.by_pattern(Causal() & PerHead(near, near), 2) == [(Causal() & near, [0, 1])]


def test_a_png_shows_the_mask(tmp_path):
    from matplotlib.image import imread

    path = tmp_path / "mask.png"
    picture.save(Causal() & Sliding(64), 512, path)
    assert [p.name for p in tmp_path.iterdir()] == ["mask.png"]
    ink = 1 - imread(path)[..., :3].mean(-1)
    # The panel: its left edge stands 0.85 inches in, its lower edge 0.6 above the bottom.
    side, left, bottom = 1024, round(0.85 * 200), round(0.6 * 200)
    panel = ink[-bottom - side : -bottom, left : left + side]
    seen = mask(Causal() & Sliding(64), 512)[0].numpy().repeat(2, 0).repeat(2, 1)
    inner = slice(8, -8)
    assert (panel[inner, inner][seen[inner, inner]] > 0.5).mean() > 0.99
    assert (panel[inner, inner][~seen[inner, inner]] < 0.1).mean() > 0.99


def test_a_figure_says_what_it_shows():
    pattern = PerHead(Sliding(3), Strided(4))
    figure = picture.draw(pattern, 64, heads=2, layers=2)
    near, far, reach, legend = figure.axes
    assert figure.get_suptitle() == str(pattern)
    assert "head 0: sliding(window=3)" in near.get_title(loc="left")
    assert "head 1: strided(stride=4)" in far.get_title(loc="left")
    assert "reached after 2 layers" in reach.get_title(loc="left")
    assert {axes.get_xlabel() for axes in (near, far, reach)} == {"key"}
    assert {axes.get_ylabel() for axes in (near, far, reach)} == {"query"}
    assert "share of pairs" in legend.get_ylabel()
    share = 100 * mask(Sliding(3), 64)[0].float().mean()
    assert f"{share:.3g}% of pairs" in near.get_title(loc="left")


def test_an_svg_and_a_wrong_suffix(tmp_path):
    picture.save(Sliding(3), 16, tmp_path / "mask.svg")
    assert "<svg" in (tmp_path / "mask.svg").read_text()[:1000]
    with pytest.raises(WeftError, match=r"\.png or \.svg; got .*mask\.pdf"):
        picture.save(Sliding(3), 16, tmp_path / "mask.pdf")


def test_without_matplotlib_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(WeftError, match=r"pip install matplotlib"):
        picture.save(Sliding(3), 16, tmp_path / "mask.png")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_picture_leaves_nothing(tmp_path, monkeypatch):
    class Broken:
        def savefig(self, path, **settings):
            path.write_text("half a picture")
            raise OSError("no space left")

    monkeypatch.setattr(picture, "draw", lambda *args, **settings: Broken())
    (tmp_path / "mask.png").write_text("an older picture")
    with pytest.raises(OSError, match="no space"):
        picture.save(Sliding(3), 16, tmp_path / "mask.png")
    assert [p.name for p in tmp_path.iterdir()] == ["mask.png"]
    assert (tmp_path / "mask.png").read_text() == "an older picture"


def test_a_picture_makes_its_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "mask.png"
    picture.save(Sliding(4), 32, path)
    assert path.read_bytes().startswith(b"\x89PNG")

"""PNG files against Pillow, and files that cannot be used: each is said by its name."""

import io

import numpy as np
import pytest

from weft.errors import WeftError
from weft.pictures.drawing import BACKGROUND, grid, png, write_png
from weft.pictures.files import read_npz, read_picture, read_pictures

Image = pytest.importorskip("PIL.Image", reason="Pillow reads picture files")
PICTURE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def test_our_png_is_what_pillow_reads(tmp_path):
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(PICTURE)))), PICTURE)
    write_png(tmp_path / "one.png", PICTURE)
    assert np.array_equal(read_picture(tmp_path / "one.png"), PICTURE)
    with pytest.raises(WeftError, match=r"written as \.png"):
        write_png(tmp_path / "one.jpg", PICTURE)


def test_a_grid_has_each_picture_in_its_place():
    drawn = grid([PICTURE, PICTURE[::-1], PICTURE[:, ::-1]], 2, scale=2, gap=1)
    assert drawn.shape == (2 * 11 + 1, 2 * 15 + 1, 3)
    assert np.array_equal(drawn[1:11:2, 16:30:2], PICTURE[::-1])
    assert np.array_equal(drawn[12:22:2, 1:15:2], PICTURE[:, ::-1])
    assert (drawn[12:, 16:] == BACKGROUND).all()


def saved(folder, name, mode, **more):
    image = Image.fromarray(PICTURE).convert(mode)
    image.save(folder / name, **more)
    return folder / name


@pytest.mark.parametrize(
    ("name", "mode", "more", "word"),
    [
        ("a.png", "RGBA", {}, "alpha"),
        ("a.png", "LA", {}, "alpha"),
        ("a.jpg", "CMYK", {}, "CMYK"),
        ("a.png", "I;16", {}, "16 bits"),
        ("a.png", "P", {"transparency": 0}, "transparent"),
    ],
)
def test_colours_that_a_person_has_to_decide_about(tmp_path, name, mode, more, word):
    if mode == "I;16":
        Image.fromarray(np.full((2, 2), 999, dtype=np.uint16)).save(tmp_path / name)
        path = tmp_path / name
    else:
        path = saved(tmp_path, name, mode, **more)
    with pytest.raises(WeftError, match=word) as error:
        read_picture(path)
    assert str(path) in str(error.value)


def test_grey_and_palette_files_are_read(tmp_path):
    found = read_picture(saved(tmp_path, "a.png", "L"))
    assert found.shape == PICTURE.shape
    assert (found[..., 0] == found[..., 2]).all()
    assert read_picture(saved(tmp_path, "b.png", "P")).shape == PICTURE.shape
    assert read_picture(saved(tmp_path, "c.jpg", "RGB")).shape == PICTURE.shape


def test_a_broken_file_and_another_size(tmp_path):
    whole = saved(tmp_path, "a.png", "RGB")
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(WeftError, match=r"cut\.png cannot be read"):
        read_picture(cut)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(WeftError, match=r"text\.png cannot be read"):
        read_picture(tmp_path / "text.png")
    Image.fromarray(PICTURE[:4]).save(tmp_path / "b.png")
    with pytest.raises(WeftError, match=r"b\.png is 4 × 7, and .*a\.png is 5 × 7"):
        read_pictures([whole, tmp_path / "b.png"])
    with pytest.raises(WeftError, match=r"a\.png is 5 × 7, and the model takes 4 × 4"):
        read_pictures([whole], (4, 4))
    with pytest.raises(WeftError, match="no picture"):
        read_picture(tmp_path / "none.png")
    with pytest.raises(WeftError, match=r"\.png"):
        read_picture(tmp_path / "a.gif")


def test_npz(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=PICTURE[None, ..., 0])
    pictures, labels = read_npz(path)
    assert (pictures.shape, labels) == ((1, 5, 7, 3), None)
    for table, word in (
        ({"x": PICTURE[None].astype(float)}, "uint8"),
        ({"x": np.zeros((2, 3, 3, 4), np.uint8)}, "alpha"),
        ({"x": PICTURE[None], "y": np.zeros(2, int)}, "one label"),
        ({"x": PICTURE[None], "y": np.zeros(1)}, "whole numbers or text"),
        ({"z": PICTURE}, "not an npz"),
    ):
        np.savez(path, **table)
        with pytest.raises(WeftError, match=word) as error:
            read_npz(path)
        assert str(path) in str(error.value)

"""Pictures as tokens and back; grey by the formula, palettes by a loop."""

import numpy as np
import pytest

from weft.errors import WeftError
from weft.pictures.coding import PictureCoding, coding_of

PICTURES = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 3), dtype=np.uint8)
PALETTE = np.array([[0, 0, 0], [200, 10, 10], [10, 200, 10], [255, 255, 255]], dtype=np.float32)


def coding(form):
    palette = PALETTE if form == "palette" else None
    return PictureCoding(form=form, height=2, width=4, palette=palette)


def test_rgb_bytes_come_pixel_by_pixel_and_back_whole():
    own = coding("rgb")
    assert (own.vocab, own.length, own.row, own.unit) == (256, 24, 12, "dimension")
    tokens = own.encode(PICTURES)
    assert tokens[1, 3:6].tolist() == PICTURES[1, 0, 1].tolist()
    assert tokens[1, 12:15].tolist() == PICTURES[1, 1, 0].tolist()
    assert np.array_equal(own.decode(tokens), PICTURES)


def test_sizes_of_the_papers():
    assert PictureCoding(form="rgb", height=32, width=32).length == 3_072
    assert PictureCoding(form="rgb", height=64, width=64).length == 12_288


def test_grey_and_palette():
    grey = coding("grey").encode(PICTURES)
    r, g, b = (PICTURES[2, 1, 3].astype(float) / 255).tolist()
    assert grey[2, 7] == int(255.5 * (0.2989 * r + 0.587 * g + 0.114 * b))
    assert coding("grey").decode(grey)[2, 1, 3].tolist() == [grey[2, 7]] * 3
    own = coding("palette")
    tokens = own.encode(PICTURES)
    for picture, row in zip(PICTURES.reshape(3, -1, 3), tokens, strict=True):
        for pixel, token in zip(picture, row, strict=True):
            distances = ((pixel.astype(float) - PALETTE) ** 2).sum(1)
            assert distances[token] == distances.min()
    assert np.array_equal(own.decode(tokens)[0, 0, 0], PALETTE[tokens[0, 0]].astype(np.uint8))
    assert own.unit == "pixel"


@pytest.mark.parametrize("form", ["grey", "rgb", "palette"])
def test_a_coding_is_a_table_and_back(form):
    own, again = coding(form), coding_of(coding(form).table())
    assert np.array_equal(own.encode(PICTURES), again.encode(PICTURES))


def test_what_does_not_fit():
    with pytest.raises(WeftError, match=r"uint8 \(n, 2, 4, 3\)"):
        coding("rgb").encode(PICTURES[:, :1])
    with pytest.raises(WeftError, match="another palette"):
        coding("palette").decode(np.full((1, 8), 4))
    with pytest.raises(WeftError, match="describe no pictures"):
        coding_of({"form": "rgb"})
    with pytest.raises(WeftError, match="have a palette"):
        PictureCoding(form="palette", height=1, width=1)

"""Pictures of patterns: the PNG holds the mask, and the index says what is what."""

import json

import numpy as np
import pytest

from weft.arena.experiment.model import Model
from weft.arena.experiment.runs import model_of
from weft.arena.experiment.settings import Experiment, with_mixer
from weft.arena.grid.pictures import COLOUR, draw_patterns, patterns_of, png
from weft.config import changed
from weft.errors import WeftError
from weft.patterns.derive import mask

TASK = "key_value(pairs=4, symbols=8, values=4, train=20, valid=10, test=10)"


def trunk(mixer):
    model = changed(Model(), {"layers": 2, "dim": 16, "heads": 2})
    return model_of(with_mixer(Experiment(task=TASK, model=model), mixer)).trunk


def test_a_png_holds_its_shades(tmp_path):
    from matplotlib.image import imread

    shades = np.linspace(0, 1, 35).reshape(5, 7)
    (tmp_path / "a.png").write_bytes(png(shades))
    found = imread(tmp_path / "a.png")
    assert found.shape == (5, 7, 4)
    np.testing.assert_allclose(found[..., 3], shades, atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(found[0, 0, :3], np.array(COLOUR) / 255, atol=1e-6)


def test_a_picture_is_the_mask(tmp_path):
    from matplotlib.image import imread

    trunks = {"full": lambda: trunk("full"), "near": lambda: trunk("sliding_window(window=3)")}
    index = draw_patterns(tmp_path, trunks, 15)
    assert json.loads((tmp_path / "pictures.json").read_text()) == index
    assert [entry["label"] for entry in index] == ["full", "near"]
    near = index[1]
    assert near["pattern"] == "sliding(window=3)"
    seen = imread(tmp_path / near["file"])[..., 3] > 0
    (pattern, where), *_ = patterns_of(trunk("sliding_window(window=3)"))
    np.testing.assert_array_equal(seen, mask(pattern, 15)[0].numpy())
    assert where == ""
    assert imread(tmp_path / index[0]["file"])[..., 3].min() == 1


def test_layers_and_heads_that_differ_are_told_apart():
    found = patterns_of(trunk("longformer(window=[3, 5], global_first=0)"))
    assert [str(pattern) for pattern, _ in found] == ["sliding(window=3)", "sliding(window=5)"]
    assert [where for _, where in found] == [" (layer 0, heads 0–1)", " (layer 1, heads 0–1)"]


def test_what_is_no_pattern_has_no_picture(tmp_path):
    def broken():
        raise WeftError("cannot be built")

    trunks = {"fnet": lambda: trunk("fnet"), "broken": broken}
    assert draw_patterns(tmp_path, trunks, 15) == []
    assert {path.name for path in tmp_path.iterdir()} == {"pictures.json"}


@pytest.mark.parametrize("mixer", ["linear_transformer", "linformer"])
def test_low_rank_and_features_are_no_patterns(mixer):
    assert patterns_of(trunk(mixer)) == []

"""Encoders of raw samples: padding changes nothing, any mixer and head follows, settings say it."""

import pytest
import torch

from weft.arena.experiment.runs import model_of
from weft.arena.experiment.settings import experiment
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.fronts.conv_features import ConvFeatures
from weft.mixers import Frame
from weft.models import Classifier, Stack, Waveform, config_from_dict, config_to_dict, load, save

FRONT = ConvFeatures(width=6, kernels=(6, 3), strides=(4, 2))


def trunk(mixer="full", registers=0, positions="sinusoidal", **frame):
    return Waveform(
        embedding=Embedding(channels=1, positions=positions, registers=registers),
        stack=Stack(frame=Frame(dim=8, heads=2, **frame), order="sf", mixer=mixer),
        front=FRONT,
    )


def sounds():
    torch.manual_seed(1)
    sizes = (120, 61, 90)
    valid = torch.arange(120) < torch.tensor(sizes)[:, None]
    return torch.randn(3, 120, 1, dtype=torch.float64), valid, sizes


@pytest.mark.parametrize("mixer", ["full", "sliding_window(window=3)", "linear_transformer"])
@pytest.mark.parametrize("pool", ["mean", "first", "attention"])
def test_a_sound_gives_what_it_gives_alone(mixer, pool):
    torch.manual_seed(0)
    registers = int(pool == "first")
    model = Classifier(trunk=trunk(mixer, registers), classes=3, pool=pool).build().double().eval()
    x, valid, sizes = sounds()
    noisy = x.masked_fill(~valid[..., None], torch.nan)
    together = model(noisy, valid=valid)
    left = torch.stack([torch.roll(row, 120 - n, 0) for row, n in zip(noisy, sizes, strict=True)])
    moved = torch.stack([torch.roll(row, 120 - n, 0) for row, n in zip(valid, sizes, strict=True)])
    for row, n in enumerate(sizes):
        alone = model(x[row : row + 1, :n])
        assert (together[row] - alone[0]).abs().max() < 1e-12
    assert (model(left, valid=moved) - together).abs().max() < 1e-12


def test_frames_are_the_rows_of_the_trunk():
    torch.manual_seed(0)
    model = trunk(registers=2).build().double().eval()
    x, valid, sizes = sounds()
    registers, frames = model.read(x, valid=valid)
    assert registers.shape == (3, 2, 8)
    assert frames.shape == (3, FRONT.frames(120), 8)
    real = model.rows_valid(valid)
    assert real.sum(1).tolist() == [FRONT.frames(n) for n in sizes]
    assert frames[~real].abs().max() == 0
    assert model.rows_valid(None) is None
    assert [tap.shape for tap in model.states(x)] == [(3, FRONT.frames(120), 8)] * 2
    first = model.read_first(x, valid=valid)
    assert (first - registers[:, 0]).abs().max() < 1e-12


def test_learned_positions_are_of_frames(tmp_path):
    config = Classifier(trunk=trunk(positions="learned", length=120), classes=2)
    model = config.build()
    assert model.trunk.embedding.positions.shape == (FRONT.frames(120), 8)
    assert config_from_dict(config_to_dict(config)) == config
    save(model.eval(), tmp_path / "m")
    x = torch.randn(2, 120, 1)
    assert torch.equal(load(tmp_path / "m")(x), model(x))


def test_a_settings_file_says_it(tmp_path):
    tables = {
        "task": {"name": "digits", "folder": str(tmp_path), "length": 400},
        "model": {
            "trunk": {"name": "waveform", "front": {"width": 4}},
            "mixer": "sliding_window(window=5)",
            "order": "sf",
        },
    }
    config = model_of(experiment(tables))
    assert config.trunk.front == ConvFeatures(width=4)
    assert config.trunk.embedding.channels == 1
    assert config.trunk.stack.frame.length == 400
    assert config.trunk.inner.stack.frame.length == 1
    assert config.classes == 10


def test_what_it_refuses():
    with pytest.raises(WeftError, match="a waveform is numbers"):
        Waveform(embedding=Embedding(vocab=256), stack=trunk().stack)
    with pytest.raises(WeftError, match="marks are of samples"):
        trunk().build().read(torch.randn(1, 120, 1), marks={"is_global": torch.zeros(1, 120)})

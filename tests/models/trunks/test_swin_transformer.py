"""Swin as a whole model: Transformers' SwinModel with the same weights, shapes, settings."""

import dataclasses

import pytest
import torch

from weft.config import read, write
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.models import MODELS, Classifier, SwinTransformer, load, save

OWN = SwinTransformer(
    embedding=Embedding(channels=3),
    height=19,
    width=27,
    patch=2,
    channels=8,
    depths=(2, 2, 1),
    heads=(1, 2, 4),
    window=3,
    expansion=2.0,
    edges="padded",
)


def theirs(config):
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(0)
    made = SwinModel(
        SwinConfig(
            image_size=(config.height, config.width),
            patch_size=config.patch,
            embed_dim=config.channels,
            depths=list(config.depths),
            num_heads=list(config.heads),
            window_size=config.window,
            mlp_ratio=config.expansion,
            drop_path_rate=0.0,
        )
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


def renamed(name, stages):
    """Transformers' name of a parameter as ours."""
    for theirs, ours in (
        ("embeddings.patch_embeddings.projection", "embedding.linear"),
        ("embeddings.norm", "norm"),
        ("attention.relative_position_bias.relative_position_bias_table", "mixer.table"),
        *((f"attention.{part}_proj", f"mixer.project.to_{part}") for part in "qkv"),
        ("attention.o_proj", "mixer.project.to_out"),
        ("layernorm_before", "norm"),
        ("layernorm_after", "mlp_norm"),
        ("layernorm", "last_norm"),
        ("mlp.fc1", "feedforward.to_hidden"),
        ("mlp.fc2", "feedforward.to_out"),
        *((f"encoder.layers.{i}.downsample", f"merges.{i}") for i in range(stages)),
        ("encoder.layers", "stages"),
    ):
        name = name.replace(theirs, ours)
    return name


def copied(model, config):
    """Our model with the weights of theirs."""
    weights = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("projection.weight"):
            tensor = tensor.permute(0, 2, 3, 1).flatten(1)  # row, column, colour
        if name.endswith("bias_table"):
            side = 2 * config.window - 1
            tensor = tensor.T.reshape(-1, side, side)
        weights[renamed(name, len(config.depths))] = tensor
    own = config.build().eval()
    own.load_state_dict(weights)
    return own


@pytest.mark.parametrize(
    "config",
    [
        OWN,  # odd sizes: patches, windows and merges are all filled up
        dataclasses.replace(OWN, height=32, width=32, window=4, depths=(2, 2), heads=(1, 2)),
        dataclasses.replace(OWN, height=24, width=24, window=3, depths=(2, 2), heads=(1, 2),
                            edges="short"),
    ],
    ids=["odd", "even window", "whole windows"],
)  # fmt: skip
def test_equals_transformers(config):
    model = theirs(config)
    own, pictures = copied(model, config), torch.randn(2, 3, config.height, config.width)
    with torch.no_grad():
        found = own(pictures.permute(0, 2, 3, 1).flatten(1, 2))
        truth = model(pictures, output_hidden_states=True)
    torch.testing.assert_close(found, truth.last_hidden_state, rtol=1e-4, atol=1e-4)
    pooled = own.read(pictures.permute(0, 2, 3, 1).flatten(1, 2))[1].mean(1)
    torch.testing.assert_close(pooled, truth.pooler_output, rtol=1e-4, atol=1e-4)
    moved = dataclasses.replace(config, edges="short" if config.edges == "padded" else "padded")
    other = moved.build().eval()
    other.load_state_dict(own.state_dict())
    same = torch.allclose(other(pictures.permute(0, 2, 3, 1).flatten(1, 2)), found, atol=1e-4)
    assert same == (config is not OWN), "only where windows are cut do the edges differ"


def test_sizes_halve_and_channels_double():
    assert OWN.sizes() == [(10, 14), (5, 7), (3, 4)]
    assert OWN.dim == 32
    model = OWN.build()
    assert [tuple(h.shape) for h in model.states(torch.randn(2, 19 * 27, 3))] == [
        (2, 140, 8),
        (2, 35, 16),
        (2, 12, 32),
    ]


def test_ids_are_levels_from_minus_one_to_one():
    config = dataclasses.replace(OWN, embedding=Embedding(vocab=256))
    model = OWN.build().eval()
    same = config.build().eval()
    same.load_state_dict(model.state_dict())
    ids = torch.randint(0, 256, (2, 19 * 27 * 3))
    values = (ids / 127.5 - 1).reshape(2, -1, 3)
    torch.testing.assert_close(same(ids), model(values))


def test_a_classifier_is_saved_and_learns(tmp_path):
    trunk = SwinTransformer(
        embedding=Embedding(), patch=2, channels=8, depths=(1, 1), heads=(1, 2), window=2
    ).bound({"vocab": 256}, 8 * 8 * 3)
    assert (trunk.height, trunk.width) == (8, 8)
    torch.manual_seed(0)
    model = Classifier(trunk=trunk, classes=2).build()
    ids = torch.randint(0, 128, (32, 8 * 8 * 3))
    classes = torch.arange(32) % 2
    ids = ids + 96 * classes[:, None]
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(ids), classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (model(ids).argmax(-1) == classes).all()
    again = load(save(model.eval(), tmp_path / "model"))
    assert torch.equal(again(ids), model(ids))


def test_a_table_says_it():
    table = write(OWN)
    assert table["name"] == "swin_transformer"
    assert read(MODELS["swin_transformer"], table) == OWN


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"heads": (1, 2)}, "each stage has blocks and heads"),
        ({"edges": "round"}, "one of 'short', 'padded'"),
        ({"height": None}, "both or neither"),
        ({"embedding": Embedding(channels=4)}, "colours=3"),
        ({"embedding": Embedding(channels=3, registers=1)}, "leave its other settings out"),
        ({"window": 0}, "window"),
    ],
)
def test_what_no_model_has(change, word):
    with pytest.raises(WeftError, match=word):
        dataclasses.replace(OWN, **change)


def test_pictures_of_another_size():
    with pytest.raises(WeftError, match=r"19 × 27 pixels are numbers \(b, 513, 3\)"):
        OWN.build()(torch.randn(1, 512, 3))
    with pytest.raises(WeftError, match="no square picture"):
        dataclasses.replace(OWN, height=None, width=None).bound({"channels": 3}, 10)
    with pytest.raises(WeftError, match="1539"):
        OWN.bound({"channels": 3}, 10)
    with pytest.raises(WeftError, match="no padding"):
        OWN.build()(torch.randn(1, 513, 3), valid=torch.zeros(1, 513, dtype=torch.bool))

"""Convolutions over samples: those of Transformers with the same weights, whatever the padding."""

import dataclasses

import pytest
import torch

from weft.errors import WeftError
from weft.layers.fronts.conv_features import ConvFeatures

SMALL = ConvFeatures(width=6, kernels=(10, 3, 3, 2), strides=(5, 2, 2, 2))


def other_library(family, config):
    """Transformers' feature encoder with the weights of one of ours, and ours."""
    from transformers import HubertConfig, Wav2Vec2Config
    from transformers.models.hubert.modeling_hubert import HubertFeatureEncoder
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder

    kind, made = {
        "wav2vec2": (Wav2Vec2Config, Wav2Vec2FeatureEncoder),
        "hubert": (HubertConfig, HubertFeatureEncoder),
    }[family]
    theirs = made(
        kind(
            conv_dim=(config.width,) * len(config.kernels),
            conv_kernel=config.kernels,
            conv_stride=config.strides,
            conv_bias=config.bias,
            feat_extract_norm=config.norm,
        )
    ).double()
    ours = config.build().double()
    with torch.no_grad():
        for i, layer in enumerate(ours.layers):
            own = theirs.conv_layers[i]
            layer.weight.copy_(own.conv.weight)
            if config.bias:
                layer.bias.copy_(own.conv.bias.normal_())
            if i < len(ours.scales):
                ours.scales[i].copy_(own.layer_norm.weight.normal_(1.0, 0.3))
                ours.shifts[i].copy_(own.layer_norm.bias.normal_())
    return theirs, ours


@pytest.mark.parametrize("family", ["wav2vec2", "hubert"])
@pytest.mark.parametrize("norm", ["group", "layer"])
def test_as_in_transformers(family, norm):
    pytest.importorskip("transformers", reason="the other library")
    torch.manual_seed(0)
    config = ConvFeatures(width=8, norm=norm, bias=norm == "layer")
    theirs, ours = other_library(family, config)
    theirs.eval()
    x = torch.randn(2, 1_700, dtype=torch.float64)
    wanted = theirs(x).mT
    found, real = ours(x[..., None])
    assert real is None
    assert found.shape == (2, config.frames(1_700), 8) == (2, 5, 8)
    assert (found - wanted).abs().max() < 1e-12
    own, given = (x.clone().requires_grad_() for _ in range(2))
    ours(own[..., None])[0].square().sum().backward()
    theirs(given).square().sum().backward()
    assert (own.grad - given.grad).abs().max() < 1e-9


def test_the_sizes_of_wav2vec():
    front = ConvFeatures()
    assert (front.hop, front.reach) == (320, 400)
    assert [front.frames(n) for n in (16_000, 400, 399, 0)] == [49, 1, 0, 0]


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_padding_changes_nothing(norm):
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, norm=norm)
    front = config.build().double()
    sizes = (203, 97, 150, config.reach - 1)
    x = torch.full((len(sizes), 240, 1), torch.nan, dtype=torch.float64)
    rows = [torch.randn(n, 1, dtype=torch.float64) for n in sizes]
    for place, row in enumerate(rows):
        x[place, : len(row)] = row
    valid = torch.arange(240) < torch.tensor(sizes)[:, None]
    found, real = front(x, valid)
    assert real.sum(1).tolist() == [config.frames(n) for n in sizes]
    assert found[~real].abs().max() == 0
    for place, row in enumerate(rows[:-1]):
        alone, _ = front(row[None])
        assert (found[place][real[place]] - alone[0]).abs().max() < 1e-12


def test_what_makes_no_frame_is_refused():
    with pytest.raises(WeftError, match="a frame is made of 400 samples; got 399"):
        ConvFeatures(width=2).build()(torch.zeros(1, 399, 1))
    with pytest.raises(WeftError, match="each convolution has a kernel and a stride"):
        ConvFeatures(kernels=(3, 3), strides=(2,))
    with pytest.raises(WeftError, match="are at least 1"):
        ConvFeatures(strides=(5, 2, 2, 2, 2, 2, 0))
    with pytest.raises(WeftError, match="norm is"):
        ConvFeatures(norm="batch")

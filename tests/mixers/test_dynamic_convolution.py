"""Dynamic convolution against ESPnet, a band matrix per token, and where it becomes a light one."""

import pytest
import torch
import torch.nn.functional as F

from mixers.fixed_patterns import DIM, HEADS, build, close, package_file, tokens
from weft.mixers import DynamicConvolution, LightConvolution


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 4, 30])
def test_equals_a_band_matrix_of_the_tokens_own_weights(n, causal):
    mixer, x = build(DynamicConvolution(kernel=5), causal=causal), tokens(n)
    before = 4 if causal else 2
    u = F.glu(mixer.to_in(x))
    taps = (u @ mixer.to_taps.weight.T).unflatten(-1, (HEADS, 5)).softmax(-1)  # (b, n, h, t)
    band = torch.zeros(2, HEADS, n, n, dtype=torch.float64)
    for i in range(n):
        for s in range(5):
            if 0 <= i + s - before < n:
                band[:, :, i, i + s - before] = taps[:, i, :, s]
    y = torch.einsum("bhij,bjhd->bihd", band, u.unflatten(-1, (HEADS, -1))).flatten(2)
    torch.testing.assert_close(mixer(x), mixer.to_out(y), **close)


def test_weights_that_ignore_the_token_are_a_light_convolution():
    mixer, light, x = (
        build(DynamicConvolution(kernel=5)),
        build(LightConvolution(kernel=5)),
        tokens(30),
    )
    with torch.no_grad():
        mixer.to_taps.weight.zero_()
        light.weight.zero_()
    light.to_in.load_state_dict(mixer.to_in.state_dict())
    light.to_out.load_state_dict(mixer.to_out.state_dict())
    torch.testing.assert_close(mixer(x), light(x), **close)
    assert mixer.to_taps.in_features == DIM


def test_equals_espnet_away_from_the_ends():
    """It shares the weights beyond the ends out to the others; ours, as fairseq, does not."""
    module = package_file("espnet", "nets/pytorch_backend/transformer/dynamic_conv.py")
    theirs = module.DynamicConvolution(HEADS, DIM, 0.0, 7, use_kernel_mask=False).double()
    mixer, x = build(DynamicConvolution(kernel=7)), tokens(20)
    mixer.to_in.load_state_dict(theirs.linear1.state_dict())
    mixer.to_out.load_state_dict(theirs.linear2.state_dict())
    with torch.no_grad():
        mixer.to_taps.weight.copy_(theirs.linear_weight.weight)
        theirs.linear_weight.bias.zero_()
    expected = theirs(x, x, x, None)
    torch.testing.assert_close(mixer(x)[:, 3:-3], expected[:, 3:-3], rtol=0, atol=1e-6)
    assert not torch.allclose(mixer(x)[:, :3], expected[:, :3])

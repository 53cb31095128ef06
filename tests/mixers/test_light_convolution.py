"""Light convolution against ESPnet's, torch's depthwise convolution and a band matrix."""

import pytest
import torch
import torch.nn.functional as F

from mixers.fixed_patterns import DIM, HEADS, build, close, package_file, tokens
from weft.mixers import LightConvolution


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 4, 30])
def test_equals_a_depthwise_convolution(n, causal):
    """Padded with zeros, softmax weights repeated for the channels of a head."""
    mixer, x = build(LightConvolution(kernel=5), causal=causal), tokens(n)
    u = F.glu(mixer.to_in(x)).transpose(1, 2)  # (b, c, n)
    weight = mixer.weight.softmax(-1).repeat_interleave(DIM // HEADS, 0)[:, None]
    padded = F.pad(u, (4, 0) if causal else (2, 2))
    expected = mixer.to_out(F.conv1d(padded, weight, groups=DIM).transpose(1, 2))
    torch.testing.assert_close(mixer(x), expected, **close)


def test_equals_a_band_matrix():
    mixer, x = build(LightConvolution(kernel=3)), tokens(12)
    u, taps = F.glu(mixer.to_in(x)), mixer.weight.softmax(-1)
    band = torch.zeros(HEADS, 12, 12, dtype=torch.float64)
    for i in range(12):
        for s in range(3):
            if 0 <= i + s - 1 < 12:
                band[:, i, i + s - 1] = taps[:, s]
    y = torch.einsum("hij,bjhd->bihd", band, u.unflatten(-1, (HEADS, -1))).flatten(2)
    torch.testing.assert_close(mixer(x), mixer.to_out(y), **close)


def test_equal_weights_are_a_moving_mean():
    mixer, x = build(LightConvolution(kernel=5), causal=True), tokens(20)
    with torch.no_grad():
        mixer.weight.zero_()
    u = F.glu(mixer.to_in(x))
    mean = torch.stack([u[:, i - 4 : i + 1].mean(1) for i in range(4, 20)], dim=1)
    torch.testing.assert_close(mixer(x)[:, 4:], mixer.to_out(mean), **close)


@pytest.mark.parametrize("causal", [False, True])
def test_equals_espnet(causal):
    """Its heads take every h-th channel, and its causal kernel is the first half of a wider one."""
    module = package_file("espnet", "nets/pytorch_backend/transformer/lightconv.py")
    theirs = module.LightweightConvolution(HEADS, DIM, 0.0, 7, use_kernel_mask=causal).double()
    mixer, x = build(LightConvolution(kernel=4 if causal else 7), causal=causal), tokens(20)
    channel = torch.arange(DIM).view(-1, HEADS).T.flatten()
    with torch.no_grad():
        halves = torch.cat((channel, channel + DIM))
        mixer.to_in.weight.copy_(theirs.linear1.weight[halves])
        mixer.to_in.bias.copy_(theirs.linear1.bias[halves])
        mixer.to_out.weight.copy_(theirs.linear2.weight[:, channel])
        mixer.to_out.bias.copy_(theirs.linear2.bias)
        mixer.weight.copy_(theirs.weight[:, 0, : mixer.kernel])
    torch.testing.assert_close(mixer(x), theirs(x, x, x, None), rtol=0, atol=1e-6)

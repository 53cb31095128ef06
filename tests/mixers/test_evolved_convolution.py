"""The convolutions of the Evolved Transformer against torch.nn.Conv1d, wired as the figure."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixers.fixed_patterns import DIM, build, close, tokens
from weft.errors import Unsupported, WeftError
from weft.mixers import EvolvedConvolution, Frame


def conv(weight, bias, groups=1):
    """A torch convolution with this weight, zeros around it as torch's own padding lays them."""
    outputs, per_group, taps = weight.shape
    made = nn.Conv1d(
        per_group * groups, outputs, taps, padding=taps // 2, groups=groups, bias=bias is not None
    ).double()
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)
    return lambda x: made(x.transpose(1, 2)).transpose(1, 2)


def causal(weight, groups=1):
    """The same, of inputs with taps − 1 zeros in front."""
    made = nn.Conv1d(weight.shape[1] * groups, len(weight), weight.shape[2], groups=groups)
    made = made.double()
    with torch.no_grad():
        made.weight.copy_(weight)
        made.bias.zero_()
    return lambda x: made(F.pad(x.transpose(1, 2), (weight.shape[2] - 1, 0))).transpose(1, 2)


@pytest.mark.parametrize("n", [1, 4, 30])
def test_encoder_cell(n):
    mixer, x = build(EvolvedConvolution()), tokens(n)
    left = F.relu(conv(mixer.wide.weight, mixer.wide.bias)(x))
    right = F.relu(conv(mixer.narrow.weight, mixer.narrow.bias)(x))
    assert left.shape[-1] == 4 * DIM
    assert right.shape[-1] == DIM // 2
    joined = torch.cat((left[..., : DIM // 2] + right, left[..., DIM // 2 :]), dim=-1)
    spread = conv(mixer.last.weight, None, groups=4 * DIM)(mixer.norm(joined))
    y = mixer.to_out(spread)
    expected = torch.cat((y, torch.zeros_like(y)), dim=-1)
    torch.testing.assert_close(mixer(x), expected, **close)
    assert [m.taps for m in (mixer.wide, mixer.narrow, mixer.last)] == [1, 3, 9]


@pytest.mark.parametrize("n", [1, 4, 30])
def test_decoder_cell(n):
    mixer, x = build(EvolvedConvolution(), causal=True), tokens(n)
    left = F.relu(mixer.wide.matrix(causal(mixer.wide.weight, groups=DIM)(x)))
    right = mixer.narrow.matrix(causal(mixer.narrow.weight, groups=DIM)(x))
    assert left.shape[-1] == 2 * DIM
    assert right.shape[-1] == DIM // 2
    joined = torch.cat((left[..., : DIM // 2] + right, left[..., DIM // 2 :]), dim=-1)
    y = mixer.to_out(causal(mixer.last.weight, groups=2 * DIM)(mixer.norm(joined)))
    torch.testing.assert_close(mixer(x), y, **close)
    assert [m.taps for m in (mixer.wide, mixer.narrow, mixer.last)] == [11, 7, 7]
    if n > 1:
        early = conv(mixer.last.weight, None, groups=2 * DIM)(mixer.norm(joined))
        assert (mixer.to_out(early) - y).abs().max() > 1e-4  # centred taps would be seen


def test_the_state_is_what_taps_reach():
    mixer = build(EvolvedConvolution(), causal=True)
    _, state = mixer.step(tokens(30), mixer.start(2))
    assert state.size() == mixer.state_size(30) == 10 * DIM + 6 * 2 * DIM


def test_refuses():
    with pytest.raises(WeftError, match=r"cell is one of .* got 'both'"):
        EvolvedConvolution(cell="both")
    with pytest.raises(Unsupported, match=r"neither queries nor keys; .* kv_heads=2"):
        EvolvedConvolution().build(Frame(dim=32, heads=4, kv_heads=2))

"""What light and dynamic convolution share: sums over taps, against loops and torch's conv1d."""

import pytest
import torch
import torch.nn.functional as F

from mixers.fixed_patterns import DIM, HEADS, build, close, decoded, tokens
from weft.errors import Unsupported, WeftError
from weft.kernels.block_sparse.band import tap_sum
from weft.layers.positions import Alibi
from weft.mixers import DynamicConvolution, Frame, LightConvolution

BOTH = pytest.mark.parametrize("kind", [LightConvolution, DynamicConvolution])


@pytest.mark.parametrize("n", [1, 5, 16, 50])
@pytest.mark.parametrize(("taps", "before"), [(1, 0), (4, 3), (7, 3), (30, 11)])
def test_tap_sums_by_loops(n, taps, before):
    x = torch.randn(2, 3, n, 4, dtype=torch.float64)
    weights = torch.randn(2, 3, n, taps, dtype=torch.float64)
    y = torch.zeros_like(x)
    for i in range(n):
        for s in range(taps):
            if 0 <= i + s - before < n:
                y[:, :, i] += weights[:, :, i, s, None] * x[:, :, i + s - before]
    torch.testing.assert_close(tap_sum(x, weights, before), y, **close)


@pytest.mark.parametrize("n", [1, 5, 40])
def test_tap_sums_with_one_set_of_taps_are_a_depthwise_convolution(n):
    x, taps = torch.randn(2, 3, n, 4).double(), torch.randn(1, 3, 1, 5).double()
    channels = x.transpose(2, 3).flatten(1, 2)  # (b, h·d, n)
    weight = taps[0, :, 0].repeat_interleave(4, 0)[:, None]
    expected = F.conv1d(F.pad(channels, (3, 1)), weight, groups=12)
    expected = expected.unflatten(1, (3, 4)).transpose(2, 3)
    torch.testing.assert_close(tap_sum(x, taps, 3), expected, **close)


@BOTH
def test_one_tap_passes_the_gate_on(kind):
    mixer, x = build(kind(kernel=1)), tokens(9)
    torch.testing.assert_close(mixer(x), mixer.to_out(F.glu(mixer.to_in(x))), **close)


@BOTH
@pytest.mark.parametrize(("kernel", "causal"), [(5, False), (4, False), (5, True)])
def test_a_token_reads_its_kernel_and_no_more(kind, kernel, causal):
    mixer, x = build(kind(kernel=kernel), causal=causal), tokens(30)
    y = mixer(x)
    x[:, 15] += 1.0
    changed = (mixer(x) != y).any(-1).all(0).nonzero().flatten().tolist()
    before = kernel - 1 if causal else (kernel - 1) // 2
    assert changed == list(range(15 - (kernel - 1 - before), 15 + before + 1))


@BOTH
def test_the_kernel_differs_by_layer(kind):
    config = kind(kernel=(3, 9))
    assert [build(config, layer=layer).kernel for layer in range(2)] == [3, 9]
    with pytest.raises(WeftError, match="kernels for 2 layers; got layer 2"):
        build(config, layer=2)


@BOTH
def test_decoding_keeps_the_last_inputs(kind):
    mixer, x = build(kind(kernel=6), causal=True), tokens(30)
    torch.testing.assert_close(decoded(mixer, x, [1, 3, 1, 1, 20, 4]), mixer(x), **close)
    assert [mixer.state_size(t) for t in (0, 3, 5, 99)] == [0, 3 * DIM, 5 * DIM, 5 * DIM]


@BOTH
def test_dropout_drops_taps(kind):
    mixer, x = build(kind(kernel=5), dropout=0.5), tokens(30)
    assert (mixer(x) != mixer(x)).any()
    mixer.eval()
    assert torch.equal(mixer(x), mixer(x))


@BOTH
def test_refusals(kind):
    for bad in (0, (3, 0), ()):
        with pytest.raises(WeftError, match="kernel is"):
            kind(kernel=bad)
    with pytest.raises(Unsupported, match="knows offsets by its taps"):
        kind().build(Frame(dim=DIM, heads=HEADS, positions=Alibi()))
    with pytest.raises(Unsupported, match="no keys to group"):
        kind().build(Frame(dim=DIM, heads=HEADS, kv_heads=1))

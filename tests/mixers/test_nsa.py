"""Native sparse attention against flash-linear-attention's naive code, and its limits."""

import warnings

import pytest
import torch

from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.kernels.nsa.reference import attend_selected
from weft.layers.overlap import OverlapCompression
from weft.layers.positions import Alibi
from weft.mixers import NSA, Frame, nsa

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fla.ops.nsa.naive import naive_nsa_compression, naive_nsa_selection, naive_nsa_topk

EQUAL = {
    "span": 8,
    "stride": 8,
    "block": 8,
    "compress": "mean",
}  # one slot per block, as fla has it


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 4, "kv_heads": 2, "causal": True, **(frame or {})})
    return NSA(**{"selected": 4, "window": 7, **EQUAL, **settings}).build(frame).double().eval()


def gaussian(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads_last(x):
    return x.transpose(1, 2)


def test_compression_and_choice_equal_fla():
    mixer, x = build(), gaussian(2, 70, 24)
    q, _, compressed, _, _ = mixer.heads(x)
    q, k, v = (y.detach() for y in (q, *mixer.compress(compressed)))
    scale = 6**-0.5
    args = map(heads_last, (q, k, v))
    expected, _ = naive_nsa_compression(*args, block_size=8, scale=scale)
    ours = mixer.read_slots(q, k, v, 0, 0.0)
    torch.testing.assert_close(heads_last(ours), expected, rtol=0, atol=1e-6)  # fla's is float32
    padded = torch.cat((k, gaussian(2, 2, 1, 6)), 2)  # its last block, which no one sees in full
    theirs = naive_nsa_topk(heads_last(q), heads_last(padded), 4, 8, scale)
    chosen = mixer.choose(q, k, 0, 70)
    assert chosen.shape == (2, 2, 70, 4)
    for at in range(70):
        for row in range(2):
            for head in range(2):
                mine = {int(u) for u in chosen[row, head, at] if u < 9}
                assert mine == {int(u) for u in theirs[row, at, head] if u >= 0}


@pytest.mark.parametrize("start", [0, 33])
def test_selected_blocks_equal_fla(start):
    q, k, v = gaussian(2, 4, 70, 6), gaussian(2, 2, 70, 6, seed=2), gaussian(2, 2, 70, 6, seed=3)
    own = torch.arange(70) // 8
    chosen = torch.stack((own, (own - 2).clamp(min=-1), (own - 4).clamp(min=-1)), -1)
    chosen = chosen.expand(2, 2, -1, -1)
    expected = naive_nsa_selection(*map(heads_last, (q, k, v)), heads_last(chosen), block_size=8)
    ours = attend_selected(
        q[:, :, start:], k, v, chosen.where(chosen >= 0, 9)[:, :, start:], block=8, start=start
    )
    torch.testing.assert_close(heads_last(ours), expected[:, start:], rtol=0, atol=1e-6)


def gated(mixer, *gates):
    """Gates of 0 and 1, through a bias that saturates."""
    mixer.to_gates.weight.data.zero_()
    mixer.to_gates.bias.data.copy_(torch.tensor(gates).repeat_interleave(4) * 80.0 - 40.0)
    return mixer


def test_all_blocks_selected_is_dense_causal_attention():
    mixer, x = gated(build(selected=9), 0, 1, 0), gaussian(2, 70, 24)
    _, q, _, selected, _ = mixer.heads(x)
    causal = torch.ones(70, 70, dtype=torch.bool).tril()
    y = dense_attention(q, *selected, mask=causal)[0]
    expected = mixer.to_out(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)
    fewer = gated(build(selected=4), 0, 1, 0)
    assert not torch.allclose(fewer(x), expected, atol=1e-3)


def test_the_window_alone_is_a_sliding_window():
    mixer, x = gated(build(), 0, 0, 1), gaussian(2, 70, 24)
    _, q, _, _, near = mixer.heads(x)
    distance = torch.arange(70)[:, None] - torch.arange(70)
    y = dense_attention(q, *near, mask=(distance >= 0) & (distance < 7))[0]
    expected = mixer.to_out(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


def test_slots_of_one_token_are_dense_causal_attention():
    mixer, x = gated(build(span=1, stride=1, block=4), 1, 0, 0), gaussian(2, 30, 24)
    q, _, compressed, _, _ = mixer.heads(x)
    y = dense_attention(q, *compressed, mask=torch.ones(30, 30).bool().tril())[0]
    expected = mixer.to_out(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


def test_overlapping_slots_count_by_the_strips_they_share_with_a_block():
    """Slots of 4 every 2 tokens, blocks of 4: slot t covers strips t and t + 1, a block has two."""
    mixer = build(span=4, stride=2, block=4)
    q, k = gaussian(1, 4, 16, 6), gaussian(1, 2, 7, 6)
    weight = mixer.importance(q, k, 0, 4)[0, 0, 15]
    p = (q[0, :2, 15] @ k[0, 0].T / 6**0.5).softmax(-1).sum(0)
    overlap = torch.tensor([[2, 0, 0, 0], [1, 1, 0, 0], [0, 2, 0, 0], [0, 1, 1, 0]])
    overlap = torch.cat((overlap, torch.tensor([[0, 0, 2, 0], [0, 0, 1, 1], [0, 0, 0, 2]])))
    torch.testing.assert_close(weight, p @ overlap.double(), rtol=0, atol=1e-12)


def test_the_choice_in_parts_is_the_choice_at_once(monkeypatch):
    mixer, x = build(), gaussian(2, 70, 24)
    whole = mixer(x)
    monkeypatch.setattr(nsa, "AT_ONCE", 2 * 4 * 8 * 11)
    torch.testing.assert_close(mixer(x), whole, rtol=0, atol=1e-13)


def test_a_window_makes_a_slot_when_it_is_full():
    compress = OverlapCompression("mlp", 4, 2, 6)
    assert [compress.slots(n) for n in (0, 3, 4, 5, 6, 8)] == [0, 0, 1, 1, 2, 3]
    assert compress(torch.randn(1, 2, 9, 6)).shape == (1, 2, 3, 6)


@pytest.mark.parametrize(("span", "stride"), [(4, 2), (3, 3), (6, 2)])
@pytest.mark.parametrize("kind", ["mlp", "mean"])
def test_slots_are_those_of_the_equation(kind, span, stride):
    compress, x = OverlapCompression(kind, span, stride, 6).double(), gaussian(2, 3, 17, 6)
    windows = [x[:, :, at : at + span] for at in range(0, 17 - span + 1, stride)]
    if kind == "mean":
        expected = torch.stack([window.mean(2) for window in windows], 2)
        shifted = torch.stack([window.roll(1, 3).mean(2) for window in windows], 2)
    else:
        first, second, places = compress.first, compress.second, compress.places
        hidden = [first((window + places).flatten(2)) for window in windows]
        expected = second(torch.nn.functional.gelu(torch.stack(hidden, 2)))
        hidden = [first((window + places.roll(1, 0)).flatten(2)) for window in windows]
        shifted = second(torch.nn.functional.gelu(torch.stack(hidden, 2)))
    torch.testing.assert_close(compress(x), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(compress(x), shifted, atol=1e-6)


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="none to bias"):
        build({"positions": Alibi()})
    with pytest.raises(Unsupported, match="causal"):
        build({"causal": False})
    for name, settings in (
        ("selected", {"selected": 2}),
        ("multiples of stride", {"span": 12, "stride": 8}),
        ("fits into a block", {"span": 16}),
        ("compress", {"compress": "max"}),
    ):
        with pytest.raises(WeftError, match=name):
            NSA(**{**EQUAL, **settings})

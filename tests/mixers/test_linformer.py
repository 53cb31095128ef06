"""Linformer against its PyPI twin, against full attention at the edges, and its block forms."""

import pytest
import torch
import torch.nn.functional as F
from linformer import LinformerSelfAttention

from weft.errors import Unsupported, WeftError
from weft.layers.positions import Alibi
from weft.mixers import Frame, Linformer

DIM, HEADS, D = 24, 4, 6
BLOCKS = ["convolution", "depthwise", "mean", "max"]
close = {"rtol": 0, "atol": 1e-12}


def build(config, **settings):
    frame = Frame(**{"dim": DIM, "heads": HEADS, "length": 20, **settings})
    return config.build(frame).double()


def tokens(n, b=2):
    return torch.randn(b, n, DIM, dtype=torch.float64)


def split(mixer, x):
    """q, k and v (b, h, n, d), keys repeated for grouped heads."""
    project, parts = mixer.project, []
    for linear in (project.to_q, project.to_k, project.to_v):
        part = linear(x).view(*x.shape[:2], -1, D).transpose(1, 2)
        parts.append(part.repeat_interleave(HEADS // part.shape[1], dim=1))
    return parts


def joined(mixer, y):
    return mixer.project.to_out(y.transpose(1, 2).flatten(2))


def full_attention(mixer, x):
    causal = mixer.frame.causal
    return joined(mixer, F.scaled_dot_product_attention(*split(mixer, x), is_causal=causal))


def convolved(part, x):
    """Slots of (b, h, n, d) by torch's own convolution, the tail padded with zeros."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % part.width))
    slots = []
    for head in range(HEADS):
        own = head if len(part.weight) > 1 else 0
        weight = part.weight[own]  # (w, d, e) or (w, d)
        kernel = weight.permute(2, 1, 0) if weight.dim() == 3 else weight.t()[:, None]
        slots.append(
            F.conv1d(
                x[:, head].mT,
                kernel,
                part.bias[own, 0],
                stride=part.width,
                groups=1 if weight.dim() == 3 else D,
            ).mT
        )
    return torch.stack(slots, dim=1)


@pytest.mark.parametrize("n", [20, 13, 1])
@pytest.mark.parametrize(
    ("sharing", "kv_heads", "theirs"),
    [
        ("heads", 4, {}),
        ("heads", 1, {"one_kv_head": True}),
        ("kv", 4, {"share_kv": True}),
    ],
)
@pytest.mark.parametrize("crossing", [False, True])
def test_equals_the_linformer_package(sharing, kv_heads, theirs, n, crossing):
    mixer = build(Linformer(rank=5, sharing=sharing), kv_heads=kv_heads, bias=False)
    other = LinformerSelfAttention(DIM, 20, k=5, heads=HEADS, **theirs).double()
    with torch.no_grad():
        other.to_out.bias.zero_()
        for name in ("to_q", "to_k", "to_v", "to_out"):
            # Its shared projection also makes values of keys.
            source = getattr(other, "to_k" if name == "to_v" and sharing == "kv" else name)
            getattr(mixer.project, name).weight.copy_(source.weight)
        mixer.compress_k.weight.copy_(other.proj_k.t())
        if sharing == "heads":
            mixer.compress_v.weight.copy_(other.proj_v.t())
    x, context = tokens(7), tokens(n)
    given = {"context": context} if crossing else {}
    source = x if crossing else context
    torch.testing.assert_close(mixer(source, **given), other(source, **given), **close)


@pytest.mark.parametrize("sharing", ["none", "heads", "kv", "layers"])
def test_as_many_slots_as_tokens_and_the_identity_is_full_attention(sharing):
    mixer, x = build(Linformer(rank=20, sharing=sharing)), tokens(20)
    with torch.no_grad():
        for part in (mixer.compress_k, mixer.compress_v):
            if part is not None:
                part.weight.copy_(torch.eye(20))
    torch.testing.assert_close(mixer(x), full_attention(mixer, x), **close)


def test_own_projections_per_head_are_used_by_their_head():
    mixer, x = build(Linformer(rank=3, sharing="none")), tokens(20)
    q, k, v = split(mixer, x)
    keys = torch.einsum("hrn,bhnd->bhrd", mixer.compress_k.weight, k)
    values = torch.einsum("hrn,bhnd->bhrd", mixer.compress_v.weight, v)
    expected = joined(mixer, (q @ keys.mT / D**0.5).softmax(-1) @ values)
    torch.testing.assert_close(mixer(x), expected, **close)


def test_averaging_projections_are_mean_pooling():
    mean, linear = build(Linformer(compress="mean", width=4)), build(Linformer(rank=5))
    linear.load_state_dict(mean.state_dict(), strict=False)
    with torch.no_grad():
        for part in (linear.compress_k, linear.compress_v):
            part.weight.copy_(torch.eye(5).repeat_interleave(4, dim=1) / 4)
    x = tokens(20)
    torch.testing.assert_close(mean(x), linear(x), **close)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compress", BLOCKS)
def test_blocks_of_one_token_are_full_attention(compress, causal):
    mixer, x = build(Linformer(compress=compress, width=1), causal=causal), tokens(33)
    with torch.no_grad():
        for part in (mixer.compress_k, mixer.compress_v):
            if compress in ("convolution", "depthwise"):
                part.weight.copy_(torch.eye(D) if compress == "convolution" else torch.ones(D))
    torch.testing.assert_close(mixer(x), full_attention(mixer, x), **close)


@pytest.mark.parametrize("sharing", ["none", "heads", "kv"])
@pytest.mark.parametrize("compress", ["convolution", "depthwise"])
@pytest.mark.parametrize("n", [1, 3, 4, 19, 50])
def test_slots_are_a_strided_convolution(compress, sharing, n):
    mixer, x = build(Linformer(compress=compress, width=4, sharing=sharing)), tokens(n)
    torch.nn.init.normal_(mixer.compress_k.bias)
    q, k, v = split(mixer, x)
    keys, values = (
        convolved(mixer.compress_k, k),
        convolved(mixer.compress_v or mixer.compress_k, v),
    )
    expected = joined(mixer, F.scaled_dot_product_attention(q, keys, values))
    torch.testing.assert_close(mixer(x), expected, **close)


@pytest.mark.parametrize("compress", ["mean", "max"])
@pytest.mark.parametrize("n", [1, 3, 4, 19])
def test_pools_are_over_the_tokens_there_are(compress, n):
    mixer, x = build(Linformer(compress=compress, width=4)), tokens(n)
    q, k, v = split(mixer, x)
    pool = torch.mean if compress == "mean" else torch.amax
    keys, values = (torch.stack([pool(p, 2) for p in y.split(4, dim=2)], dim=2) for y in (k, v))
    expected = joined(mixer, F.scaled_dot_product_attention(q, keys, values))
    torch.testing.assert_close(mixer(x), expected, **close)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 23])
def test_causal_reads_closed_blocks_as_slots_and_the_open_one_by_token(n):
    mixer, w = build(Linformer(compress="convolution", width=4), causal=True, kv_heads=2), 4
    x, index = tokens(n), torch.arange(n)[:, None]
    q, k, v = split(mixer, x)
    keys = torch.cat((convolved(mixer.compress_k, k), k), dim=2)
    values = torch.cat((convolved(mixer.compress_v, v), v), dim=2)
    slots, places = torch.arange(-(-n // w)), torch.arange(n)
    mask = torch.cat(
        (slots * w + w - 1 <= index, (places <= index) & (places >= (index + 1) // w * w)), dim=1
    )
    expected = joined(mixer, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
    torch.testing.assert_close(mixer(x), expected, **close)


@pytest.mark.parametrize("compress", BLOCKS)
def test_a_circular_shift_by_whole_blocks_shifts_the_output(compress):
    mixer, x = build(Linformer(compress=compress, width=4)), tokens(20)
    torch.testing.assert_close(mixer(x.roll(8, dims=1)), mixer(x).roll(8, dims=1), **close)
    assert (mixer(x.roll(1, dims=1)) - mixer(x).roll(1, dims=1)).abs().max() > 1e-3


def test_the_linear_form_does_not_shift():
    mixer, x = build(Linformer(rank=5)), tokens(20)
    assert (mixer(x.roll(8, dims=1)) - mixer(x).roll(8, dims=1)).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compress", BLOCKS)
def test_padding_adds_no_slot_and_no_token(compress, causal):
    mixer, x = build(Linformer(compress=compress, width=4), causal=causal), tokens(19)
    valid = torch.arange(19) < torch.tensor([19, 6])[:, None]
    alone = mixer(x[1:, :6])
    x[1, 6:] = torch.nan
    torch.testing.assert_close(mixer(x, valid=valid)[1:, :6], alone, **close)


@pytest.mark.parametrize("config", [Linformer(rank=5), *(Linformer(compress=c) for c in BLOCKS)])
def test_a_context_of_padding_alone_reads_as_zero(config):
    mixer = build(config)
    for name, bias in mixer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(bias)
    valid = torch.tensor([[True] * 9, [False] * 9])
    y = mixer(tokens(4), context=tokens(9), context_valid=valid)
    torch.testing.assert_close(y[1], mixer.project.to_out.bias.expand(4, DIM), **close)
    assert (y[0] - y[1]).abs().max() > 1e-3


def test_decoding_keeps_slots_and_the_open_block():
    mixer, x = build(Linformer(compress="depthwise", width=5), causal=True), tokens(23)
    state, out = mixer.start(2), []
    for begin, end in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 19), (19, 23)):
        y, state = mixer.step(x[:, begin:end], state)
        out.append(y)
        assert state.slots_k.shape[2] == end // 5
        assert state.open_k.shape[2] == end % 5
        assert state.size() == mixer.state_size(end)
    torch.testing.assert_close(torch.cat(out, dim=1), mixer(x), **close)


def test_sharing_counts_the_parameters():
    sizes = {}
    for sharing in ("none", "heads", "kv", "layers"):
        layers = [build(Linformer(rank=5, sharing=sharing), layer=i) for i in range(3)]
        Linformer.tie(layers)
        owned = torch.nn.ModuleList(layers).named_parameters()
        sizes[sharing] = sum(p.numel() for name, p in owned if "compress" in name) // (20 * 5)
    assert sizes == {"none": 3 * 2 * HEADS, "heads": 3 * 2, "kv": 3, "layers": 1}


def test_tied_layers_learn_one_compression():
    shared = Linformer(compress="convolution", width=4, sharing="layers")
    layers = [build(shared, layer=0), build(Linformer(rank=5)), build(shared, layer=2)]
    before = layers[1].compress_k
    Linformer.tie(layers)
    assert layers[2].compress_k is layers[0].compress_k
    assert layers[1].compress_k is before
    x = tokens(20)
    first, last = (
        torch.autograd.grad(layer(x).sum(), layer.compress_k.weight)[0] for layer in layers[::2]
    )
    (both,) = torch.autograd.grad(
        sum(layer(x).sum() for layer in layers[::2]), layers[0].compress_k.weight
    )
    torch.testing.assert_close(both, first + last)


def test_ranks_by_layer():
    config = Linformer(rank=(8, 4, 2))
    assert [build(config, layer=i).compress_k.weight.shape[1] for i in range(3)] == [8, 4, 2]
    with pytest.raises(WeftError, match="names 3 layers, but layer 3 is built"):
        build(config, layer=3)
    assert build(Linformer(rank=64)).compress_k.weight.shape == (1, 20, 20)
    assert build(Linformer(compress="mean", rank=6)).compress_k.width == 4


def test_without_a_length_it_takes_4096_tokens():
    mixer = build(Linformer(rank=2), length=None)
    assert mixer.compress_k.weight.shape == (1, 2, 4096)


def test_longer_than_length_is_an_error_for_the_linear_form_alone():
    with pytest.raises(WeftError, match=r"at most 20 tokens; got 21; .*length=21"):
        build(Linformer(rank=5))(tokens(21))
    assert build(Linformer(rank=5, compress="convolution"))(tokens(21)).shape == (2, 21, DIM)


def test_refusals():
    with pytest.raises(Unsupported, match=r"linformer cannot be causal: .*'convolution'"):
        build(Linformer(), causal=True)
    with pytest.raises(Unsupported, match="does not stream"):
        build(Linformer()).start(1)
    with pytest.raises(Unsupported, match="build it causal=True"):
        build(Linformer(compress="mean")).start(1)
    with pytest.raises(Unsupported, match="none to bias"):
        build(Linformer(), positions=Alibi())
    with pytest.raises(WeftError, match="sharing is one of"):
        Linformer(sharing="head")
    with pytest.raises(WeftError, match="compress is one of"):
        Linformer(compress="conv")
    with pytest.raises(WeftError, match="rank counts slots"):
        Linformer(rank=(4, 0))
    with pytest.raises(WeftError, match="have one rank"):
        Linformer(rank=(4, 2), sharing="layers")
    with pytest.raises(WeftError, match="has no blocks"):
        Linformer(width=4)

"""Position schemes against the Transformers library, rotary-embedding-torch and the equations."""

import math

import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from weft.config import write
from weft.errors import WeftError
from weft.layers.positions import (
    POSITIONS,
    Alibi,
    PositionScheme,
    Rope,
    Rope2d,
    T5Bias,
    alibi_slopes,
    build_positions,
)

B, H, N, D = 2, 4, 37, 16


def turned_by_complex_numbers(x, positions, base, interleaved):
    """(x1 + i x2) · exp(iθ), in fp64."""
    d = x.shape[-1]
    angle = torch.outer(positions.double(), base ** -(torch.arange(0, d, 2).double() / d))
    pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
    z = torch.complex(*pairs) * torch.polar(torch.ones_like(angle), angle)
    if interleaved:
        return torch.stack((z.real, z.imag), -1).flatten(-2)
    return torch.cat((z.real, z.imag), -1)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_rope_equals_llama(base):
    q, k = torch.randn(2, B, H, N, D)
    index = torch.arange(N)
    config = LlamaConfig(hidden_size=H * D, num_attention_heads=H, head_dim=D)
    config.rope_parameters = {"rope_type": "default", "rope_theta": base}
    cos, sin = LlamaRotaryEmbedding(config)(q, index[None])
    theirs = apply_rotary_pos_emb(q, k, cos, sin)
    rotary = Rope(base=base).build(H, D)
    for x, expected in zip((q, k), theirs, strict=True):
        torch.testing.assert_close(rotary.rotate(x, index), expected, rtol=0, atol=2e-5)


def test_interleaved_rope_equals_rotary_embedding_torch():
    x = torch.randn(B, H, N, D)
    theirs = RotaryEmbedding(D).rotate_queries_or_keys(x)
    ours = Rope(interleaved=True).build(H, D).rotate(x, torch.arange(N))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("start", [0, 1_000_000])
def test_rope_is_a_rotation_by_the_equation(interleaved, start):
    x = torch.randn(B, H, N, D, dtype=torch.float64)
    index = torch.arange(start, start + N)
    ours = Rope(interleaved=interleaved).build(H, D).rotate(x, index)
    truth = turned_by_complex_numbers(x, index, 10_000.0, interleaved)
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rope_is_exact_far_out_in_low_precision(dtype):
    """One rounding of the result, not one of the angle: at 100 003 an angle in fp16 is lost."""
    x = torch.randn(B, H, N, D).to(dtype)
    index = torch.arange(100_003, 100_003 + N)
    ours = Rope().build(H, D).rotate(x, index)
    assert ours.dtype == dtype
    truth = turned_by_complex_numbers(x.double(), index, 10_000.0, interleaved=False)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        ours.double(), truth, rtol=eps, atol=4 * torch.finfo(torch.float32).eps
    )


def test_the_two_layouts_differ_by_a_permutation():
    x = torch.randn(B, H, N, D, dtype=torch.float64)
    index = torch.arange(N)
    to_halves = torch.cat((torch.arange(0, D, 2), torch.arange(1, D, 2)))
    halves = Rope().build(H, D).rotate(x[..., to_halves], index)
    pairs = Rope(interleaved=True).build(H, D).rotate(x, index)
    torch.testing.assert_close(halves, pairs[..., to_halves], rtol=0, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shift", [1, 1000])
def test_rope_knows_distances_only(interleaved, shift):
    rotary = Rope(interleaved=interleaved).build(H, D)
    q, k = torch.randn(2, B, H, N, D, dtype=torch.float64)

    def scores(start):
        index = torch.arange(start, start + N)
        return rotary.rotate(q, index) @ rotary.rotate(k, index).transpose(-1, -2)

    torch.testing.assert_close(scores(shift), scores(0), rtol=0, atol=1e-10)
    moved = rotary.rotate(q, torch.arange(N)) @ k.transpose(-1, -2)
    assert not torch.allclose(moved, scores(0)), "turning the queries alone has to matter"


def test_rope_leaves_position_zero_alone_and_keeps_lengths():
    x = torch.randn(B, H, N, D, dtype=torch.float64)
    turned = Rope().build(H, D).rotate(x, torch.arange(N))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_slopes_equal_mpt_and_bloom(heads):
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), mpt, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), bloom, rtol=1e-6, atol=0)


def bias_of(scheme, heads, i, j):
    return scheme.at(torch.arange(heads).view(-1, 1, 1), i[:, None], j[None])


def test_alibi_is_minus_slope_times_distance():
    index = torch.arange(9)
    bias = bias_of(Alibi().build(8, D), 8, index, index)
    assert bias.shape == (8, 9, 9)
    for head in range(8):
        for i in range(9):
            for j in range(9):
                assert bias[head, i, j].item() == -(2.0 ** -(head + 1)) * abs(i - j)


def test_alibi_shifts_with_the_text():
    scheme, index = Alibi().build(8, D), torch.arange(N)
    assert torch.equal(bias_of(scheme, 8, index, index), bias_of(scheme, 8, index + 7, index + 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_alibi_tells_far_neighbours_apart_in_half_precision(dtype):
    """A slope or distance rounded to 8 bits would merge thousands of positions."""
    scheme = Alibi().build(12, D).to(dtype)
    i, j = torch.tensor([5000]), torch.arange(5000)
    exact = -torch.tensor(alibi_slopes(12)).double().view(-1, 1, 1) * (5000 - j)
    torch.testing.assert_close(bias_of(scheme, 12, i, j).double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (16, 64), (8, 20), (64, 1000)])
def test_t5_buckets_equal_transformers(causal, buckets, reach):
    offsets = torch.arange(-1200, 1201)
    scheme = T5Bias(buckets=buckets, max_distance=reach, causal=causal).build(H, D)
    theirs = T5Attention._relative_position_bucket(offsets, not causal, buckets, reach)
    assert torch.equal(scheme.bucket(offsets), theirs)


@pytest.mark.parametrize("causal", [False, True])
def test_t5_bias_reads_its_table_at_key_minus_query(causal):
    scheme = T5Bias(causal=causal).build(H, D)
    i, j = torch.arange(20), torch.arange(31)
    bias = bias_of(scheme, H, i, j)
    assert bias.shape == (H, 20, 31)
    offset = j[None] - i[:, None]
    theirs = scheme.table[T5Attention._relative_position_bucket(offset, not causal)]
    assert torch.equal(bias, theirs.permute(2, 0, 1))
    assert bias.requires_grad


def test_t5_shifts_with_the_text():
    scheme, index = T5Bias().build(H, D), torch.arange(N)
    assert torch.equal(bias_of(scheme, H, index, index), bias_of(scheme, H, index + 9, index + 9))


def test_t5_tells_left_from_right_unless_causal():
    near = torch.tensor([-3, 3])
    assert len(set(T5Bias().build(H, D).bucket(near).tolist())) == 2
    assert T5Bias(causal=True).build(H, D).bucket(near).tolist() == [3, 0]


@pytest.mark.parametrize(("buckets", "reach"), [(32, 8), (1, 128), (0, 128)])
def test_t5_refuses_buckets_that_do_not_fit(buckets, reach):
    """Half of the buckets of one direction are exact; max_distance lies beyond them."""
    with pytest.raises(WeftError):
        T5Bias(buckets=buckets, max_distance=reach).build(H, D)


def pixel(token, tile):
    """Where a token of an 8×8 picture stands, counted by hand."""
    if tile is None:
        return divmod(token, 8)
    high, wide = tile
    block, inner = divmod(token, high * wide)
    (down, right), (y, x) = divmod(block, 8 // wide), divmod(inner, wide)
    return down * high + y, right * wide + x


@pytest.mark.parametrize("tile", [None, (2, 4), (4, 2)], ids=str)
def test_rope2d_turns_each_half_by_one_coordinate(tile):
    rotary = Rope2d(width=8, unit=4.0, tile=tile, shortest=3.0, longest=24.0).build(1, 8).double()
    x = torch.randn(1, 1, 64, 8, dtype=torch.float64)
    out = rotary.rotate(x, torch.arange(64))
    for token in range(64):
        for half, coordinate in enumerate(pixel(token, tile)):
            own = x[0, 0, token, 4 * half : 4 * half + 4]
            angle = coordinate * 0.5 * 2 * math.pi / torch.tensor([3.0, 24.0]).double()
            z = torch.complex(own[:2], own[2:]) * torch.polar(torch.ones_like(angle), angle)
            expected = torch.cat((z.real, z.imag))
            torch.testing.assert_close(out[0, 0, token, 4 * half : 4 * half + 4], expected)


def test_rope2d_reads_a_finer_picture_as_the_same():
    """A pixel of a picture twice as fine, at twice the coordinates, turns alike."""
    x = torch.randn(1, 1, 1, 16).expand(1, 1, 256, 16)
    coarse = Rope2d(width=8).build(1, 16).rotate(x[:, :, :64], torch.arange(64))
    fine = Rope2d(width=16).build(1, 16).rotate(x, torch.arange(256))
    same = fine.unflatten(2, (16, 16))[:, :, ::2, ::2].flatten(2, 3)
    torch.testing.assert_close(same, coarse)
    assert not torch.allclose(fine[:, :, :64], coarse)


def test_rope2d_keeps_exact_angles_in_half_precision():
    rotary = Rope2d(width=64, unit=64.0).build(1, 16)
    exact = rotary.cos.clone()
    assert torch.equal(rotary.bfloat16().cos, exact)


def test_rope2d_refuses_what_is_no_picture():
    rotary = Rope2d(width=4).build(1, 8)
    assert rotary.rotate(torch.ones(1, 1, 3, 8), torch.arange(3)).shape == (1, 1, 3, 8)
    with pytest.raises(WeftError, match="places 16 pixels; got 17"):
        rotary.rotate(torch.ones(1, 1, 17, 8), torch.arange(17))
    with pytest.raises(WeftError, match="tile=\\(3, 2\\)"):
        Rope2d(width=4, tile=(3, 2))
    with pytest.raises(WeftError, match="multiple of 4; got 6"):
        Rope2d(width=4).build(1, 6)


def test_no_positions_is_the_identity():
    scheme = build_positions(None, H, D)
    x = torch.randn(B, H, N, D)
    assert type(scheme) is PositionScheme
    assert not scheme.biased
    assert scheme.rotate(x, torch.arange(N)) is x


@pytest.mark.parametrize(
    "config",
    [
        Rope(),
        Rope(base=5e5, interleaved=True),
        Alibi(),
        T5Bias(buckets=8, causal=True),
        Rope2d(width=8, tile=(2, 4)),
    ],
    ids=str,
)
def test_configs_survive_being_written(config):
    assert POSITIONS.read(write(config)) == config
    assert POSITIONS.parse(str(config)) == config
    scheme = build_positions(config, H, D)
    assert scheme.biased == (not isinstance(config, Rope | Rope2d))
    assert math.isfinite(scheme.rotate(torch.ones(1, H, 3, D), torch.arange(3)).sum())

"""Synthesizer: what its scores are, and the mechanisms it becomes at the edges."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from weft.errors import Unsupported, WeftError
from weft.layers.positions import Alibi, Rope
from weft.mixers import MIXERS, Frame, Synthesizer
from weft.mixers.synthesizer import Kind

N, DIM, HEADS = 11, 24, 4


def build(kinds="dense", mixture="none", rank=8, **settings):
    frame = Frame(**{"dim": DIM, "heads": HEADS, "length": 20, **settings})
    return Synthesizer(kinds=kinds, mixture=mixture, rank=rank).build(frame).double()


def tokens(n=N):
    return torch.randn(2, n, DIM, dtype=torch.float64)


def heads(linear, x, count=HEADS):
    return linear(x).view(*x.shape[:2], count, -1).transpose(1, 2)


def joined(mixer, y):
    return mixer.to_out(y.transpose(1, 2).flatten(2))


def expected_from(mixer, x, scores):
    """softmax(scores) v, causal if the mixer is."""
    if mixer.frame.causal:
        scores = scores + torch.full((N, N), -torch.inf, dtype=x.dtype).triu(1)
    return joined(mixer, scores.softmax(-1) @ heads(mixer.to_v, x))


def full_attention(mixer, x):
    q, k, v = (heads(part, x) for part in (mixer.to_q, mixer.to_k, mixer.to_v))
    return joined(mixer, F.scaled_dot_product_attention(q, k, v, is_causal=mixer.frame.causal))


def two_layers(part, x):
    hidden = F.relu(heads(part.hidden, x))
    return torch.einsum("bhnd,hdl->bhnl", hidden, part.weight) + part.bias


@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_zero_are_the_mean_of_what_is_read(causal):
    mixer, x = build("random", causal=causal), tokens()
    torch.nn.init.zeros_(mixer.parts[0].table)
    v = heads(mixer.to_v, x)
    counts = torch.arange(1, N + 1).view(-1, 1)
    mean = v.cumsum(2) / counts if causal else v.mean(2, keepdim=True).expand_as(v)
    torch.testing.assert_close(mixer(x), joined(mixer, mean), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_dense(causal):
    mixer, x = build("dense", causal=causal), tokens()
    torch.nn.init.normal_(mixer.parts[0].bias)
    scores = two_layers(mixer.parts[0], x)[..., :N]
    torch.testing.assert_close(mixer(x), expected_from(mixer, x, scores), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [20, 16, 11])
def test_factorised_dense_tiles_one_factor_and_repeats_the_other(causal, length):
    mixer, x = build("factorised_dense", causal=causal, length=length), tokens()
    a, b = (two_layers(part, x) for part in (mixer.parts[0].fine, mixer.parts[0].coarse))
    assert a.shape[-1] * b.shape[-1] >= length
    scores = a.tile(b.shape[-1]) * b.repeat_interleave(a.shape[-1], dim=-1)
    expected = expected_from(mixer, x, scores[..., :N])
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_factorised_random_is_random_with_the_product(causal):
    mixer, other = build("factorised_random", rank=3, causal=causal), build("random", causal=causal)
    other.load_state_dict(mixer.state_dict(), strict=False)
    left, right = mixer.parts[0].left, mixer.parts[0].right
    assert left.shape == (HEADS, 20, 3)
    other.parts[0].table.data = torch.einsum("hir,hjr->hij", left, right).data
    x = tokens()
    torch.testing.assert_close(mixer(x), other(x), rtol=0, atol=1e-12)
    expected = expected_from(other, x, other.parts[0].table[:, :N, :N])
    torch.testing.assert_close(other(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_plus_without_scores_is_full_attention(causal):
    mixer, x = build("random", "plus", causal=causal), tokens()
    torch.nn.init.zeros_(mixer.parts[0].table)
    torch.testing.assert_close(mixer(x), full_attention(mixer, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_alpha_goes_from_full_attention_to_the_scores_and_starts_between(causal):
    mixer, x = build("random", "alpha", causal=causal), tokens()
    table = mixer.parts[0].table[:, :N, :N]
    q, k = heads(mixer.to_q, x), heads(mixer.to_k, x)
    dots = q @ k.mT / (DIM / HEADS) ** 0.5
    between = expected_from(mixer, x, (dots + table) / 2)
    torch.testing.assert_close(mixer(x), between, rtol=0, atol=1e-12)
    mixer.alpha.data.fill_(-40.0)
    torch.testing.assert_close(mixer(x), full_attention(mixer, x), rtol=0, atol=1e-12)
    mixer.alpha.data.fill_(40.0)
    torch.testing.assert_close(mixer(x), expected_from(mixer, x, table), rtol=0, atol=1e-12)


def test_several_kinds_are_mixed_with_shares_that_sum_to_one():
    mixer, x = build(("random", "dense")), tokens()
    table, dense = mixer.parts[0].table[:, :N, :N], two_layers(mixer.parts[1], x)[..., :N]
    expected = expected_from(mixer, x, (table + dense) / 2)
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)
    mixer.shares.data = torch.tensor([2.0, 5.0], dtype=torch.float64).log()
    expected = expected_from(mixer, x, (2 * table + 5 * dense) / 7)
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


def test_fixed_random_is_drawn_from_the_seed_saved_and_never_learned():
    first, again = build("fixed_random", seed=3), build("fixed_random", seed=3)
    other, deeper = build("fixed_random", seed=4), build("fixed_random", seed=3, layer=1)
    table = first.state_dict()["parts.0.table"]
    assert torch.equal(table, again.parts[0].table)
    assert not torch.equal(table, other.parts[0].table)
    assert not torch.equal(table, deeper.parts[0].table)
    assert "parts.0.table" not in dict(first.named_parameters())
    x = tokens()
    expected = expected_from(first, x, table[:, :N, :N])
    torch.testing.assert_close(first(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kinds", get_args(Kind))
@pytest.mark.parametrize(("mixture", "kept"), [("none", 1), ("plus", 2), ("alpha", 2)])
def test_decoding_keeps_keys_only_where_they_are_compared(kinds, mixture, kept):
    mixer, x = build(kinds, mixture, causal=True, kv_heads=2), tokens()
    assert hasattr(mixer, "to_k") == (mixture != "none")
    state, out = mixer.start(2), []
    for begin, end in ((0, 4), (4, 5), (5, N)):
        y, state = mixer.step(x[:, begin:end], state)
        out.append(y)
        assert state.size() == mixer.state_size(end) == kept * 2 * 6 * end
    torch.testing.assert_close(torch.cat(out, dim=1), mixer(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kinds", ["dense", "random", "factorised_dense", "factorised_random"])
def test_longer_than_length_is_an_error(kinds):
    mixer = build(kinds, causal=True)
    assert mixer(tokens(20)).shape == (2, 20, DIM)
    with pytest.raises(WeftError, match=r"at most 20 tokens; got 21; .*length=21"):
        mixer(tokens(21))
    _, state = mixer.step(tokens(20), mixer.start(2))
    with pytest.raises(WeftError, match="at most 20 tokens"):
        mixer.step(tokens(1), state)


def test_positions():
    plain, biased = build("dense"), build("dense", positions=Alibi())
    biased.load_state_dict(plain.state_dict())
    x = tokens()
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs()
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]).view(-1, 1, 1).double()
    scores = two_layers(plain.parts[0], x)[..., :N] - slopes * distance
    torch.testing.assert_close(biased(x), expected_from(plain, x, scores), rtol=0, atol=1e-12)
    with pytest.raises(Unsupported, match="no queries and keys to turn"):
        build("dense", positions=Rope())
    assert build("dense", "plus", positions=Rope())(x).isfinite().all()


def test_refusals():
    mixer = build()
    with pytest.raises(Unsupported, match="synthesizer cannot read a context"):
        mixer(tokens(), context=tokens())
    with pytest.raises(Unsupported, match="build it causal=True"):
        mixer.start(1)
    with pytest.raises(WeftError, match=r"kinds.1. is one of"):
        Synthesizer(kinds=("dense", "dence"))
    with pytest.raises(WeftError, match="kinds are one or more"):
        Synthesizer(kinds=())
    with pytest.raises(WeftError, match="mixture is one of"):
        Synthesizer(mixture="beta")
    with pytest.raises(WeftError, match="rank is at least 1"):
        Synthesizer(rank=0)


def test_spec_strings():
    config = MIXERS.parse("synthesizer(kinds=['random', 'dense'], mixture='plus')")
    assert config == Synthesizer(kinds=("random", "dense"), mixture="plus")
    assert MIXERS.parse(str(config)) == config

"""Longformer against the Transformers library, with padding and any set of global tokens."""

import pytest
import torch
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from mixers.fixed_patterns import (
    DIM,
    HEADS,
    D,
    attention,
    build,
    close,
    copy_linears,
    decoded,
    heads,
    joined,
    pairs,
    tokens,
)
from weft.errors import WeftError
from weft.layers.positions import Alibi, Rope, T5Bias
from weft.mixers import Longformer

RAGGED = ([0, 1, 5], [7])


def theirs_and_ours(window, **settings):
    """Their layer with a window of `window` tokens in all, ours of half of it and the token."""
    config = LongformerConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
        num_hidden_layers=1,
    )
    theirs = LongformerSelfAttention(config, 0).double()
    for bias in (p for p in theirs.parameters() if p.dim() == 1):
        torch.nn.init.normal_(bias, std=0.1)
    mixer = build(Longformer(window=window // 2 + 1, **settings))
    copy_linears(mixer.project, theirs.query, theirs.key, theirs.value)
    with torch.no_grad():
        for name in ("q", "k", "v"):
            whole = {"q": "query", "k": "key", "v": "value"}[name]
            mine, other = getattr(mixer, f"to_{name}_global"), getattr(theirs, f"{whole}_global")
            mine.load_state_dict(other.state_dict())
    return theirs, mixer


def run_theirs(theirs, x, valid, is_global):
    mask = torch.zeros(x.shape[:2], dtype=x.dtype)
    mask = mask.masked_fill(is_global, 10_000.0).masked_fill(~valid, -10_000.0)
    return theirs(
        x,
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=bool((mask > 0).any()),
    )[0]


def marked(n, at):
    chosen = torch.zeros(len(at), n, dtype=torch.bool)
    for row, places in enumerate(at):
        chosen[row, places] = True
    return chosen


@pytest.mark.parametrize("window", [4, 8])
@pytest.mark.parametrize("at", [([], []), ([0], [0]), RAGGED, ([2, 3, 20], [0, 23])])
@pytest.mark.parametrize("lengths", [(24, 24), (24, 17)])
def test_equals_transformers(window, at, lengths):
    """Their softmax runs in single precision whatever the dtype."""
    theirs, mixer = theirs_and_ours(window)
    x, is_global = tokens(24), marked(24, at)
    valid = torch.arange(24) < torch.tensor(lengths)[:, None]
    is_global &= valid
    expected = run_theirs(theirs, x, valid, is_global)
    found = mixer(x, valid=valid, is_global=is_global)
    torch.testing.assert_close(found[valid], expected[valid], rtol=0, atol=1e-6)
    assert (found[~valid] == 0).all()


@pytest.mark.parametrize("first", [0, 1, 3])
def test_leading_global_tokens_equal_transformers(first):
    theirs, mixer = theirs_and_ours(8, global_first=first)
    x, is_global = tokens(24), torch.arange(24).expand(2, -1) < first
    valid = torch.arange(24) < torch.tensor([24, 15])[:, None]
    expected = run_theirs(theirs, x, valid, is_global)
    torch.testing.assert_close(mixer(x, valid=valid)[valid], expected[valid], rtol=0, atol=1e-6)


def test_any_length_equals_theirs_padded_to_the_window():
    theirs, mixer = theirs_and_ours(8)
    x = tokens(24)
    valid = (torch.arange(24) < 19).expand(2, -1)
    is_global = marked(24, RAGGED)
    expected = run_theirs(theirs, x, valid, is_global)[:, :19]
    found = mixer(x[:, :19], is_global=is_global[:, :19])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def globally(mixer, x, is_global, near):
    """The equation: local rows over window and globals, global rows over all by their own maps."""
    local = attention(mixer.project, x, near | is_global[:, None, None, :])
    if not mixer.config.global_projections:
        everywhere = attention(mixer.project, x, None)
    else:
        q, k, v = (
            part(x).unflatten(-1, (HEADS, D)).transpose(1, 2)
            for part in (mixer.to_q_global, mixer.to_k_global, mixer.to_v_global)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        everywhere = joined(mixer.project, y)
    return torch.where(is_global[..., None], everywhere, local)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("n", [1, 9, 30])
def test_the_definition(n, own):
    mixer = build(Longformer(window=4, global_first=2, global_projections=own))
    x, near = tokens(n), pairs(n, lambda i, j: abs(i - j) < 4)
    leading = torch.arange(n).expand(2, -1) < 2
    torch.testing.assert_close(mixer(x), globally(mixer, x, leading, near), **close)
    chosen = torch.rand(2, n) < 0.3
    expected = globally(mixer, x, chosen, near)
    torch.testing.assert_close(mixer(x, is_global=chosen), expected, **close)


def test_dilation_differs_by_head_and_window_by_layer():
    config = Longformer(window=(3, 5), dilation=(1, 4), global_first=0)
    x = tokens(30)
    for layer, window in enumerate(config.window):
        mixer = build(config, layer=layer)
        steps = [1, 1, 4, 4]
        seen = torch.stack(
            [
                pairs(30, lambda i, j, s=s: (i - j) % s == 0 and abs(i - j) < window * s)  # noqa: B023  # called at once
                for s in steps
            ]
        )
        torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_a_window_over_everything_is_full_attention():
    mixer, x = build(Longformer(window=30, global_first=0)), tokens(30)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, None), **close)
    # With every token global and shared projections as well.
    mixer = build(Longformer(window=1, global_projections=False))
    every = torch.ones(2, 30, dtype=torch.bool)
    found = mixer(x, is_global=every)
    torch.testing.assert_close(found, attention(mixer.project, x, None), **close)


def test_named_and_leading_globals_agree():
    """The same tokens, named or counted: two paths through the kernels, one result."""
    leading = torch.arange(40).expand(2, -1) < 3
    for positions in (None, Rope(), Alibi(), T5Bias()):
        for valid in (None, torch.arange(40) < torch.tensor([40, 21])[:, None]):
            mixer = build(Longformer(window=6, global_first=3), positions=positions, kv_heads=2)
            x = tokens(40)
            by_name = mixer(x, valid=valid, is_global=leading)
            torch.testing.assert_close(by_name, mixer(x, valid=valid), **close)


def test_global_keys_carry_the_bias_of_their_distance():
    mixer, x = build(Longformer(window=3, global_projections=False), positions=Alibi()), tokens(20)
    chosen = marked(20, RAGGED)
    q, k, v = heads(mixer.project, x)
    i, j = torch.arange(20)[:, None], torch.arange(20)[None, :]
    slopes = torch.tensor([2.0 ** (-8 * a / HEADS) for a in range(1, HEADS + 1)])
    scores = q @ k.mT * D**-0.5 - slopes[:, None, None] * (i - j).abs()
    seen = pairs(20, lambda i, j: abs(i - j) < 3) | chosen[:, None, None, :]
    y = joined(mixer.project, scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)
    found = mixer(x, is_global=chosen)
    torch.testing.assert_close(found[~chosen], y[~chosen], **close)


@pytest.mark.parametrize("named", [False, True])
def test_dropout_reaches_every_row(named):
    mixer, x = build(Longformer(window=5, global_first=2), dropout=0.5), tokens(30)
    given = {"is_global": marked(30, RAGGED)} if named else {}
    rows = torch.stack([mixer(x, **given) for _ in range(4)])
    assert (rows[0] != rows[1:]).any(0).any(-1).all()
    mixer.eval()
    torch.testing.assert_close(mixer(x, **given), mixer(x, **given), rtol=0, atol=0)


def test_decoding_keeps_the_window_and_the_globals():
    config = Longformer(window=6, global_first=2)
    mixer, x = build(config, causal=True, kv_heads=2), tokens(40)
    torch.testing.assert_close(decoded(mixer, x, [3, 1, 9, 27]), mixer(x), **close)
    for t in range(40):
        kept = min(t, 5) + min(2, max(0, t - 5))
        assert mixer.state_size(t) == 2 * 2 * D * kept
    dilated = build(Longformer(window=4, dilation=(1, 3), global_first=1), causal=True)
    assert dilated.state_size(500) == 2 * HEADS * D * (3 * 3 + 1)


def test_causal_reads_the_leading_tokens_by_the_local_maps():
    mixer, x = build(Longformer(window=4, global_first=2), causal=True), tokens(20)
    seen = pairs(20, lambda i, j: j <= i and (i - j < 4 or j < 2))
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Longformer(window=0), "window is a whole number of at least 1; got window=0"),
        (lambda: Longformer(window=(4, 0)), "window is a whole number of at least 1; got window=0"),
        (lambda: Longformer(dilation=0), "dilation is a whole number of at least 1; got dilation"),
        (lambda: Longformer(global_first=-1), "global_first counts tokens; got global_first=-1"),
        (
            lambda: build(Longformer(window=(4, 5)), layer=2),
            "longformer has windows for 2 layers; got layer 2: give one window, or one per layer",
        ),
        (
            lambda: build(Longformer(), causal=True)(tokens(4), is_global=marked(4, ([0], []))),
            "a causal longformer takes its global tokens from global_first",
        ),
        (
            lambda: build(Longformer())(tokens(4), is_global=torch.zeros(2, 4)),
            "is_global is boolean, True where a token is global; got torch.float32",
        ),
        (
            lambda: build(Longformer())(tokens(4), is_global=marked(5, ([0], []))),
            "is_global is (batch, length) = (2, 4); got (2, 5)",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert message in str(caught.value)

"""The Sparse Transformer's two patterns: the paper's sets, and two steps between any two tokens."""

import pytest
import torch

from mixers.fixed_patterns import (
    HEADS,
    D,
    attention,
    build,
    close,
    decoded,
    pairs,
    tokens,
)
from weft.errors import WeftError
from weft.mixers import SparseTransformer
from weft.patterns.derive import mask, receptive_field

STRIDED = SparseTransformer(stride=5)
FIXED = SparseTransformer(kind="fixed", stride=5, summary=2)


def near(kind, i):
    """The first set of the paper for query i, stride 5."""
    if kind == "strided":
        return set(range(max(0, i - 4), i + 1))
    return {j for j in range(i + 1) if j // 5 == i // 5}


def far(kind, i):
    """The second set, with two summary columns."""
    if kind == "strided":
        return set(range(i, -1, -5))
    return {j for j in range(i + 1) if j % 5 in (3, 4)}


@pytest.mark.parametrize("n", [1, 4, 23, 40])
@pytest.mark.parametrize("config", [STRIDED, FIXED], ids=str)
def test_merged_reads_the_union_of_the_papers_sets(config, n):
    mixer, x = build(config, causal=True), tokens(n)
    seen = pairs(n, lambda i, j: j in near(config.kind, i) | far(config.kind, i))
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_interleaved_alternates_by_layer(kind):
    config = SparseTransformer(kind=kind, stride=5, summary=2, integration="interleaved")
    x = tokens(23)
    for layer, own in enumerate((near, far, near, far)):
        mixer = build(config, causal=True, layer=layer)
        seen = pairs(23, lambda i, j, own=own: j in own(kind, i))
        alive = seen.any(-1)
        expected = attention(mixer.project, x, seen | ~alive[:, None])
        torch.testing.assert_close(mixer(x)[:, alive], expected[:, alive], **close)
        # A row that reads nothing, before the first summary: 0 behind the output's bias.
        nothing = mixer.project.to_out.bias.expand(2, int((~alive).sum()), -1)
        torch.testing.assert_close(mixer(x)[:, ~alive], nothing, **close)


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_heads_are_split_between_the_sets(kind):
    config = SparseTransformer(kind=kind, stride=5, summary=2, integration="heads")
    found = mask(config.pattern(causal=True, layer=0), 23, heads=HEADS)
    for head in range(HEADS):
        own = near if head < HEADS // 2 else far
        assert (found[head] == pairs(23, lambda i, j, own=own: j in own(kind, i))).all()


@pytest.mark.parametrize("config", [STRIDED, FIXED], ids=str)
def test_any_earlier_token_is_two_steps_away(config):
    reach = receptive_field(config.pattern(causal=True, layer=0), 60, 2)
    assert (reach == torch.ones(60, 60).tril().bool()).all()
    one = receptive_field(config.pattern(causal=True, layer=0), 60, 1)
    assert one.sum() < 0.6 * reach.sum()


def test_a_row_reads_about_two_strides():
    n, stride = 1024, 32
    strided = SparseTransformer(stride=stride).pattern(causal=True, layer=0)
    # The token itself stands in both sets and counts once.
    assert mask(strided, n)[0].sum(1).max() == stride + n // stride - 1


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_both_directions_drop_the_mask_of_the_future(kind):
    mixer, x = build(SparseTransformer(kind=kind, stride=5, summary=2)), tokens(23)

    def reads(i, j):
        if kind == "strided":
            return abs(i - j) < 5 or (i - j) % 5 == 0
        return i // 5 == j // 5 or j % 5 >= 3

    torch.testing.assert_close(mixer(x), attention(mixer.project, x, pairs(23, reads)), **close)


@pytest.mark.parametrize("config", [STRIDED, FIXED], ids=str)
def test_a_stride_over_everything_is_full_attention(config):
    mixer = build(SparseTransformer(kind=config.kind, stride=40), causal=True)
    x, seen = tokens(30), pairs(30, lambda i, j: j <= i)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_decoding_keeps_all_or_the_summaries():
    x = tokens(43)
    strided = build(STRIDED, causal=True, kv_heads=2)
    fixed = build(FIXED, causal=True, kv_heads=2)
    for mixer in (strided, fixed):
        torch.testing.assert_close(decoded(mixer, x, [1, 3, 1, 9, 29]), mixer(x), **close)
    for t in range(43):
        assert strided.state_size(t) == 2 * 2 * D * t
        # Two of each finished stretch of five, and the open stretch.
        assert fixed.state_size(t) == 2 * 2 * D * (2 * (t // 5) + t % 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseTransformer(stride=0), "got window=0|got stride=0"),
        (lambda: SparseTransformer(kind="random"), "kind is one of 'strided', 'fixed'; got 'rand"),
        (
            lambda: SparseTransformer(integration="sum"),
            "integration is one of 'merged'",
        ),
        (
            lambda: SparseTransformer(kind="fixed", stride=4),
            "columns of width=8 do not fit a stride",
        ),
        (
            lambda: build(SparseTransformer(integration="heads"), heads=3, dim=24),
            "heads=3 is odd: use an even number or integration='merged'",
        ),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(WeftError, match=message):
        make()

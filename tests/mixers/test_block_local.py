"""Block-local attention against local_attention's, and at its limits."""

import pytest
import torch
from local_attention import LocalAttention

from mixers.fixed_patterns import (
    D,
    attention,
    build,
    close,
    decoded,
    heads,
    joined,
    pairs,
    tokens,
)
from weft.errors import WeftError
from weft.mixers import BlockLocal


@pytest.mark.parametrize("n", [3, 16, 24, 37])
@pytest.mark.parametrize(
    ("before", "after", "causal"),
    [(0, 0, False), (1, 0, False), (1, 1, False), (2, 3, False), (0, 0, True), (2, 0, True)],
)
def test_equals_the_local_attention_package(n, before, after, causal):
    config = BlockLocal(block=8, before=before, after=after)
    mixer, x = build(config, causal=causal, kv_heads=2), tokens(n)
    theirs = LocalAttention(
        8,
        causal=causal,
        look_backward=before,
        look_forward=after,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    valid = torch.arange(n) < torch.tensor([n, n - n // 3])[:, None]
    expected = joined(mixer.project, theirs(*heads(mixer.project, x), mask=valid))
    found = mixer(x, valid=valid)
    torch.testing.assert_close(found[valid], expected[valid], **close)


@pytest.mark.parametrize("n", [1, 7, 20])
def test_the_definition(n):
    mixer, x = build(BlockLocal(block=6, before=1, after=2)), tokens(n)
    seen = pairs(n, lambda i, j: -2 <= i // 6 - j // 6 <= 1)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize("causal", [False, True])
def test_one_block_is_full_attention(causal):
    mixer, x = build(BlockLocal(block=30), causal=causal), tokens(30)
    seen = pairs(30, lambda i, j: j <= i or not causal)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_blocks_of_one_token_copy_the_values():
    mixer, x = build(BlockLocal(block=1)), tokens(9)
    value = mixer.project.to_out(mixer.project.to_v(x))
    torch.testing.assert_close(mixer(x), value, **close)


def test_blocks_are_contiguous_and_do_not_wrap():
    """Changing one block changes that block and its right neighbour alone."""
    mixer, x = build(BlockLocal(block=5, before=1)), tokens(25)
    y = mixer(x)
    x[:, 10:15] += 1.0
    changed = (mixer(x) != y).any(-1).all(0)
    assert changed.tolist() == [10 <= i < 20 for i in range(25)]


def test_decoding_keeps_the_open_block_and_those_before():
    mixer, x = build(BlockLocal(block=6, before=2), causal=True, kv_heads=2), tokens(40)
    torch.testing.assert_close(decoded(mixer, x, [1, 4, 1, 1, 13, 20]), mixer(x), **close)
    for t in range(40):
        # The block of the next token and two before it, as far as they are filled.
        kept = t - max(0, t // 6 - 2) * 6
        assert mixer.state_size(t) == 2 * 2 * D * kept


@pytest.mark.parametrize("bad", [{"block": 0}, {"before": -1}, {"after": -2}, {"block": 2.5}])
def test_bad_settings(bad):
    (name, value), *_ = bad.items()
    with pytest.raises(
        WeftError, match=rf"{name} is a whole number(; got| of at least .; got {name}=).*{value}"
    ):
        BlockLocal(**bad)

"""The Image Transformer against masks written from pixel coordinates, and FlexAttention."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mixers.fixed_patterns import attention, build, close, decoded, heads, joined, pairs, tokens
from weft.errors import WeftError
from weft.mixers import ImageTransformer
from weft.patterns import Tiles

SMALL = ImageTransformer(width=6, rectangle=(2, 3), margin=(1, 2))


def pixels(height, width, rectangle):
    """(row, column) of each position, rectangle by rectangle, by walking over the picture."""
    high, wide = rectangle
    return [
        (top + y, left + x)
        for top in range(0, height, high)
        for left in range(0, width, wide)
        for y in range(high)
        for x in range(wide)
    ]


def reads(config, causal):
    """The definition for two positions, from their pixels."""
    at, (high, wide) = pixels(20, config.width, config.rectangle), config.rectangle
    above, beside = config.margin

    def test(i, j):
        (y, x), (row, column) = at[i], at[j]
        top, left = y // high * high, x // wide * wide
        below = 0 if causal else above
        near = top - above <= row < top + high + below
        near = near and left - beside <= column < left + wide + beside
        return near and (j <= i or not causal)

    return test


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 12, 37, 48])
def test_the_definition(n, causal):
    mixer, x = build(SMALL, causal=causal, kv_heads=2), tokens(n)
    seen = pairs(n, reads(SMALL, causal))
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize("causal", [False, True])
def test_the_definition_where_blocks_are_used(causal):
    """Long enough for the block-sparse kernel."""
    config = ImageTransformer(width=32, rectangle=(4, 8), margin=(2, 8))
    mixer, x = build(config, causal=causal), tokens(640, b=1)
    seen = pairs(640, reads(config, causal))
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [3, 8, 29])
def test_a_line_of_blocks(n, causal):
    """A block reads itself and the one before it; in both directions also the one after."""
    mixer, x = build(ImageTransformer(kind="1d", block=8), causal=causal), tokens(n)
    seen = pairs(
        n, lambda i, j: j // 8 in (i // 8 - 1, i // 8) if causal else abs(i // 8 - j // 8) < 2
    )
    if causal:
        seen &= pairs(n, lambda i, j: j <= i)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_equals_flex_attention():
    mixer, x = build(SMALL, causal=True), tokens(48)
    at = torch.tensor(pixels(8, 6, (2, 3)))

    def seen(b, h, i, j):
        (y, x), (row, column) = at[i].unbind(-1), at[j].unbind(-1)
        top, left = y // 2 * 2, x // 3 * 3
        across = (column >= left - 2) & (column < left + 5)
        return (j <= i) & (row >= top - 1) & across

    mask = create_block_mask(seen, None, None, 48, 48, device="cpu", BLOCK_SIZE=16)
    with torch.no_grad():
        y = flex_attention(*heads(mixer.project, x), block_mask=mask)
        torch.testing.assert_close(mixer(x), joined(mixer.project, y), **close)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        ImageTransformer(kind="1d", block=30),
        ImageTransformer(width=6, rectangle=(5, 6), margin=(0, 0)),
        ImageTransformer(width=6, rectangle=(1, 2), margin=(5, 6)),
    ],
    ids=str,
)
def test_a_memory_of_everything_is_full_attention(config, causal):
    mixer, x = build(config, causal=causal), tokens(30)
    seen = pairs(30, lambda i, j: j <= i or not causal)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_the_order_of_tiles_is_the_order_of_rectangles():
    raster = Tiles(48, 0, 6, 2, 3).positions()
    assert [divmod(int(p), 6) for p in raster] == pixels(8, 6, (2, 3))


def test_decoding_keeps_what_later_rectangles_read():
    mixer, x = build(SMALL, causal=True, kv_heads=2), tokens(60)
    torch.testing.assert_close(decoded(mixer, x, [1, 7, 1, 13, 38]), mixer(x), **close)
    # A row of rectangles and the row above it bound the state at any length.
    assert max(mixer.state_size(t) for t in range(600)) <= 2 * 2 * 6 * (2 * 6 + 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "3d"}, "kind is one of"),
        ({"width": 20}, "width=20 is not a multiple of across=16"),
        ({"rectangle": (8,)}, "rectangle is a list of 2"),
        ({"margin": (1, -1)}, "beside is a whole number of at least 0"),
        ({"kind": "1d", "block": 0}, "block is a whole number of at least 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(WeftError, match=message):
        ImageTransformer(**settings)

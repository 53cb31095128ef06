"""BlockBERT against FlexAttention under its predicate, and at its limits."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mixers.fixed_patterns import DIM, HEADS, attention, build, close, heads, joined, pairs, tokens
from weft.errors import Unsupported, WeftError
from weft.mixers import BlockBert, Frame


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("shifts", [(0, 0, 0, 1), (0, 1, 2, 3), (2,)])
def test_equals_flex_attention_under_permuted_blocks(shifts):
    mixer, x = build(BlockBert(blocks=4, shifts=shifts)), tokens(64)
    permutations = torch.tensor([[(u + s) % 4 for u in range(4)] for s in shifts])
    permutations = permutations.repeat_interleave(HEADS // len(shifts), 0)

    def seen(b, h, i, j):
        return permutations[h, i // 16] == j // 16

    mask = create_block_mask(seen, None, HEADS, 64, 64, device="cpu", BLOCK_SIZE=16)
    with torch.no_grad():
        y = flex_attention(*heads(mixer.project, x), block_mask=mask)
        torch.testing.assert_close(mixer(x), joined(mixer.project, y), **close)


@pytest.mark.parametrize(
    ("config", "n", "w", "u"),
    [
        (BlockBert(blocks=3, shifts=(0, 0, 1, 2)), 20, 7, 3),
        (BlockBert(blocks=4, shifts=(0, 0, 1, 2)), 5, 2, 3),  # the fourth block would be empty
        (BlockBert(block=6, shifts=(0, 0, 1, 2)), 25, 6, 5),
        (BlockBert(block=6, shifts=(0, 0, 1, 2)), 4, 6, 1),
    ],
)
def test_the_definition(config, n, w, u):
    mixer, x = build(config, kv_heads=2), tokens(n)
    seen = torch.stack(
        [pairs(n, lambda i, j, s=s: j // w == (i // w + s) % u) for s in (0, 0, 1, 2)]
    )
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize("config", [BlockBert(blocks=1), BlockBert(block=30)])
def test_one_block_is_full_attention(config):
    mixer, x = build(config), tokens(30)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, None), **close)


def test_all_shifts_together_connect_every_pair():
    config = BlockBert(blocks=4, shifts=(0, 1, 2, 3))
    mixer, x = build(config), tokens(24)
    y = mixer(x)
    for j in range(24):
        other = x.clone()
        other[:, j] += 1.0
        assert (mixer(other) != y).any(-1).all()


def test_borders_follow_the_real_tokens():
    mixer, x = build(BlockBert(blocks=3, shifts=(0, 1))), tokens(23)
    valid = torch.rand(2, 23) < 0.6
    y = mixer(x, valid=valid)
    for row in range(2):
        alone = mixer(x[row, valid[row]][None])[0]
        torch.testing.assert_close(y[row, valid[row]], alone, **close)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [1]), (2, [0, 1]), (4, [0, 0, 0, 1]), (8, [0] * 6 + [1] * 2), (12, [0] * 9 + [1] * 3)],
)
def test_shifts_are_shared_out(count, expected):
    assert BlockBert().shift_of(count) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 0}, "blocks is a whole number of at least 1; got blocks=0"),
        ({"block": 0}, "block is a whole number of at least 1; got block=0"),
        ({"shifts": ()}, "shifts names the shift of one head or more"),
        ({"shifts": (0, -1)}, "shifts is a whole number of at least 0; got shifts=-1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(WeftError, match=message):
        BlockBert(**settings)


def test_refuses_to_be_causal():
    with pytest.raises(Unsupported, match="blockbert cannot be causal: a shifted head reads"):
        BlockBert().build(Frame(dim=DIM, heads=HEADS, causal=True))

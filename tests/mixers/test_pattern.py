"""The user's own pattern: the equation under the written-out mask, layer by layer."""

import pytest
import torch

from mixers.fixed_patterns import attention, build, close, tokens
from weft.errors import WeftError
from weft.mixers import MIXERS, Longformer, OwnPattern


def pairs(n, rule):
    return torch.tensor([[rule(i, j) for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("causal", [False, True])
def test_reads_what_the_expression_says(causal):
    mixer = build(OwnPattern(reads="sliding(3) | strided(7)"), causal=causal)
    x = tokens(40)
    seen = pairs(40, lambda i, j: abs(i - j) < 3 or (i - j) % 7 == 0)
    seen = seen.tril() if causal else seen
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_layers_take_turns():
    config = OwnPattern(reads="sliding(2); sliding(9)")
    x, n = tokens(30), 30
    for layer, window in enumerate((2, 9, 2)):
        mixer = build(config, layer=layer)
        seen = pairs(n, lambda i, j, w=window: abs(i - j) < w)
        torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)
        wrong = pairs(n, lambda i, j, w=window: abs(i - j) <= w)
        assert not torch.allclose(mixer(x), attention(mixer.project, x, wrong))


def test_tiles_as_blocks_are_a_neighbourhood_of_the_picture():
    """4×4 tiles of 2×2 pixels, in tile order: a tile reads the 3×3 tiles around it."""
    mixer, x = build(OwnPattern(reads="blocked(window2d(4, 2), 4)")), tokens(64)

    def near(i, j):
        (a, b), (c, d) = divmod(i // 4, 4), divmod(j // 4, 4)
        return abs(a - c) < 2 and abs(b - d) < 2

    seen = pairs(64, near)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_one_name_in_a_string():
    config = MIXERS.parse('pattern(reads="sliding(8) | global(first=2)")')
    assert config == OwnPattern(reads="sliding(8) | global(first=2)")
    other = Longformer(window=8, global_first=2, global_projections=False)
    own, known = build(config), build(other)
    known.load_state_dict(own.state_dict())
    x = tokens(50)
    torch.testing.assert_close(own(x), known(x), **close)


@pytest.mark.parametrize(
    ("reads", "message"),
    [("", "an empty one"), ("sliding(4);", "an empty one"), ("slding(4)", "sliding")],
)
def test_a_wrong_expression_is_refused(reads, message):
    with pytest.raises(WeftError, match=message):
        OwnPattern(reads=reads)

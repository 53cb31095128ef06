"""Sliding windows against local_attention's exact window, Mistral's mask, and at their limits."""

import pytest
import torch
from local_attention import LocalAttention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MistralConfig
from transformers.masking_utils import create_sliding_window_causal_mask

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
from weft.layers.positions import Alibi, Rope
from weft.mixers import SlidingWindow


@pytest.mark.parametrize("n", [5, 16, 24, 37])
@pytest.mark.parametrize(("look", "causal"), [(1, False), (2, False), (1, True), (3, True)])
def test_equals_the_local_attention_package(n, look, causal):
    """It reads `look` windows of 8 to each side besides the token: ours counts the token."""
    mixer, x = build(SlidingWindow(window=8 * look + 1), causal=causal), tokens(n)
    theirs = LocalAttention(
        8,
        causal=causal,
        look_backward=look,
        look_forward=0 if causal else look,
        exact_windowsize=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    valid = torch.arange(n) < torch.tensor([n, n - n // 3])[:, None]
    expected = joined(mixer.project, theirs(*heads(mixer.project, x), mask=valid))
    torch.testing.assert_close(mixer(x, valid=valid)[valid], expected[valid], **close)


@pytest.mark.parametrize("window", [1, 4, 9])
def test_counts_as_mistral_does(window):
    """`sliding_window` of the Transformers library: w tokens, the token itself included."""
    n, x = 12, torch.zeros(1, 12, 8)
    config = MistralConfig(sliding_window=window, attn_implementation="sdpa", hidden_size=8)
    theirs = create_sliding_window_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=None,
        past_key_values=None,
        position_ids=torch.arange(n)[None],
    )
    if theirs is None:
        pytest.fail("the library made no mask to compare with")
    mixer, x = build(SlidingWindow(window=window), causal=True), tokens(n)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, theirs[0, 0]), **close)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sinks", [0, 3])
@pytest.mark.parametrize("n", [1, 2, 20])
def test_the_definition(n, sinks, causal):
    mixer, x = build(SlidingWindow(window=5, sinks=sinks), causal=causal), tokens(n)

    def reads(i, j):
        return (abs(i - j) < 5 or j < sinks) and (j <= i or not causal)

    torch.testing.assert_close(mixer(x), attention(mixer.project, x, pairs(n, reads)), **close)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [20, 1000])
def test_a_window_over_everything_is_full_attention(window, causal):
    mixer, x = build(SlidingWindow(window=window), causal=causal), tokens(20)
    seen = pairs(20, lambda i, j: j <= i or not causal)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_window_one_copies_the_values():
    mixer, x = build(SlidingWindow(window=1), causal=True), tokens(9)
    value = mixer.project.to_out(mixer.project.to_v(x))
    torch.testing.assert_close(mixer(x), value, **close)


@pytest.mark.parametrize("positions", [None, Rope(), Alibi()])
def test_decoding_keeps_the_window_and_the_sinks(positions):
    config = SlidingWindow(window=7, sinks=2)
    mixer, x = build(config, causal=True, kv_heads=2, positions=positions), tokens(40)
    torch.testing.assert_close(decoded(mixer, x, [1, 5, 1, 1, 12, 20]), mixer(x), **close)
    for t in range(40):
        kept = min(t, 6) + min(2, max(0, t - 6))
        assert mixer.state_size(t) == 2 * 2 * D * kept
    assert mixer.state_size(10**6) == 2 * 2 * D * 8


def test_long_sequences_take_the_sparse_kernel():
    """Beyond the length where blocks pay, the values are still those of the definition."""
    mixer, x = build(SlidingWindow(window=9), causal=True), tokens(700, b=1)
    seen = torch.ones(700, 700).tril().triu(-8).bool()
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_a_long_prompt_is_not_compared_with_itself_pair_by_pair():
    """The first step of a decoder takes the sparse kernel: memory follows the window."""
    n, sizes = 2000, []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes.append(result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    mixer, x = build(SlidingWindow(window=9), causal=True), tokens(n, b=1)
    with torch.no_grad(), Watch():
        y, state = mixer.step(x, mixer.start(1))
    assert max(sizes) < n * n / 2
    torch.testing.assert_close(y, mixer(x), **close)
    assert state.k.shape[2] == 8


def test_bad_settings():
    with pytest.raises(WeftError, match="window is a whole number of at least 1; got window=0"):
        SlidingWindow(window=0)
    with pytest.raises(WeftError, match="is a whole number of at least 0; got"):
        SlidingWindow(sinks=-1)

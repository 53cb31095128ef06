"""Full attention against torch's module and Llama's, and what a decoder keeps."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from mixers.fixed_patterns import (
    DIM,
    HEADS,
    D,
    attention,
    build,
    close,
    copy_linears,
    decoded,
    tokens,
)
from weft.errors import WeftError
from weft.layers.positions import Rope
from weft.mixers import MIXERS, FullAttention


def split(theirs):
    """The three maps that torch keeps in one matrix, and the one behind."""
    made = []
    for weight, bias in zip(
        theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    ):
        linear = nn.Linear(DIM, DIM).double()
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
        made.append(linear)
    return *made, theirs.out_proj


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_equals_torch(n, causal):
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    mixer, x = build(FullAttention(), causal=causal), tokens(n)
    copy_linears(mixer.project, *split(theirs))
    valid = torch.arange(n) < torch.tensor([n, (n + 1) // 2])[:, None]
    hidden = torch.ones(n, n).triu(1).bool() if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=~valid, attn_mask=hidden, need_weights=False)
    torch.testing.assert_close(mixer(x, valid=valid)[valid], expected[valid], **close)


def test_cross_attention_equals_torch():
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    mixer, x, context = build(FullAttention()), tokens(5), tokens(9)
    copy_linears(mixer.project, *split(theirs))
    valid = torch.arange(9) < torch.tensor([9, 4])[:, None]
    expected, _ = theirs(x, context, context, key_padding_mask=~valid, need_weights=False)
    found = mixer(x, context=context, context_valid=valid)
    torch.testing.assert_close(found, expected, **close)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_llama(kv_heads):
    """Grouped keys and rotary positions, in half-split pairs."""
    settings = {"hidden_size": DIM, "num_attention_heads": HEADS, "attention_bias": False}
    config = LlamaConfig(**settings, num_key_value_heads=kv_heads, attn_implementation="eager")
    theirs, n = LlamaAttention(config, 0).double().eval(), 23
    mixer = build(FullAttention(), causal=True, kv_heads=kv_heads, positions=Rope(), bias=False)
    copy_linears(mixer.project, theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.o_proj)
    x = tokens(n)
    turned = LlamaRotaryEmbedding(config)(x, torch.arange(n)[None])
    hidden = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected, _ = theirs(x, position_embeddings=turned, attention_mask=hidden)
    # Llama's angles are computed in single precision.
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-5)


def test_documents_packed_in_a_row_do_not_see_each_other():
    mixer, x = build(FullAttention(), causal=True), tokens(20)
    segments = torch.tensor([[0] * 8 + [1] * 12, [3] * 20])
    found = mixer(x, segments=segments)
    torch.testing.assert_close(found[:1, 8:], mixer(x[:1, 8:]), **close)
    torch.testing.assert_close(found[:1, :8], mixer(x[:1, :8]), **close)
    torch.testing.assert_close(found[1:], mixer(x[1:]), **close)


def test_decoding_keeps_every_key():
    mixer, x = build(FullAttention(), causal=True, kv_heads=2, positions=Rope()), tokens(19)
    torch.testing.assert_close(decoded(mixer, x, [5, 1, 1, 12]), mixer(x), **close)
    for t in (0, 1, 7, 1000):
        assert mixer.state_size(t) == 2 * 2 * D * t


def test_dropout_acts_in_training_alone():
    mixer, x = build(FullAttention(), dropout=0.5), tokens(30)
    assert (mixer(x) != mixer(x)).any()
    torch.testing.assert_close(mixer.eval()(x), attention(mixer.project, x, None), **close)


def test_unknown_settings():
    with pytest.raises(WeftError, match="full has no setting 'window'; it has none"):
        MIXERS.parse("full(window=3)")
    with pytest.raises(WeftError, match="did you mean 'full'"):
        MIXERS.parse("ful")
    mixer = build(FullAttention())
    with pytest.raises(
        WeftError, match="full does not take the mark 'is_global'; it takes segments"
    ):
        mixer(tokens(4), is_global=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(WeftError, match=r"segments is \(batch, length\) = \(2, 4\); got \(2, 3\)"):
        mixer(tokens(4), segments=torch.zeros(2, 3))

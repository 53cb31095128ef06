"""The Perceiver against the Transformers library, as a mixer; the model is in tests/models."""

import pytest
import torch
from transformers import PerceiverConfig
from transformers.models.perceiver.modeling_perceiver import PerceiverLayer

from mixers.fixed_patterns import DIM, HEADS, build, close, copy_linears, tokens
from weft.errors import Unsupported, WeftError
from weft.layers.positions import Rope
from weft.mixers import Frame, Perceiver


def their_layer(crossing, residual=True):
    config = PerceiverConfig(attention_probs_dropout_prob=0.0, hidden_act="gelu")
    layer = PerceiverLayer(
        config,
        is_cross_attention=crossing,
        num_heads=HEADS,
        q_dim=DIM,
        kv_dim=DIM,
        qk_channels=DIM,
        v_channels=DIM,
        widening_factor=2,
        use_query_residual=residual,
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return layer.double().eval()


def copy_block(mine, theirs):
    """Weights of their layer into one of our latent blocks."""
    inner = theirs.attention.self
    copy_linears(
        mine.attention.project,
        inner.query,
        inner.key,
        inner.value,
        theirs.attention.output.dense,
    )
    mine.norm.load_state_dict(inner.layernorm1.state_dict())
    if mine.source_norm is not None:
        mine.source_norm.load_state_dict(inner.layernorm2.state_dict())
    mine.mlp_norm.load_state_dict(theirs.layernorm.state_dict())
    mine.to_hidden.load_state_dict(theirs.mlp.dense1.state_dict())
    mine.from_hidden.load_state_dict(theirs.mlp.dense2.state_dict())


def hidden(valid):
    """Their additive mask: (b, 1, 1, n)."""
    return torch.where(valid, 0.0, -1e30).double()[:, None, None, :]


@pytest.mark.parametrize("lengths", [(20, 20), (20, 7)])
@pytest.mark.parametrize("repeats", [1, 3])
def test_latents_equal_transformers(lengths, repeats):
    mixer = build(Perceiver(latents=5, layers=2, repeats=repeats, expansion=2))
    x, valid = tokens(20), torch.arange(20) < torch.tensor(lengths)[:, None]
    read, think = [], []
    for own in range(min(repeats, 2)):
        read.append(their_layer(True))
        think.append([their_layer(False), their_layer(False)])
        copy_block(mixer.latents.read[own], read[own])
        for mine, theirs in zip(mixer.latents.think[own], think[own], strict=True):
            copy_block(mine, theirs)
    z = mixer.latents.start.expand(2, -1, -1)
    for repeat in range(repeats):
        own = min(repeat, 1)
        z = read[own](z, inputs=x, inputs_mask=hidden(valid))[0]
        for layer in think[own]:
            z = layer(z)[0]
    torch.testing.assert_close(mixer.latents(x, valid), z, rtol=0, atol=1e-6)
    back = torch.nn.functional.scaled_dot_product_attention(
        mixer.spread.project.q(x),
        mixer.spread.project.k(mixer.norm(z)),
        mixer.spread.project.v(mixer.norm(z)),
    )
    expected = mixer.spread.project.out(back)
    torch.testing.assert_close(mixer(x, valid=valid)[valid], expected[valid], rtol=0, atol=1e-6)


def test_permuting_tokens_permutes_outputs():
    mixer, x, order = build(Perceiver(latents=4)), tokens(30), torch.randperm(30)
    torch.testing.assert_close(mixer(x[:, order]), mixer(x)[:, order], **close)


def test_a_context_is_what_the_latents_read():
    mixer, x, context = build(Perceiver(latents=4)), tokens(7), tokens(12)
    torch.testing.assert_close(mixer(x, context=x), mixer(x), **close)
    assert not torch.allclose(mixer(x, context=context), mixer(x))


@pytest.mark.parametrize("bad", [{"latents": 0}, {"layers": -1}, {"repeats": 0}, {"expansion": 0}])
def test_bad_settings(bad):
    with pytest.raises(WeftError, match="is a whole number of at least"):
        Perceiver(**bad)


def test_refuses_positions():
    with pytest.raises(Unsupported, match="latents have no position"):
        Perceiver().build(Frame(dim=DIM, heads=HEADS, positions=Rope()))

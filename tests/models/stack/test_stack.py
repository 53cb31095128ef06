import math

import pytest
import torch
import torch.nn.functional as F
from model_parts import DIM, RunningMean, built, normal, stack
from torch import nn

from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense
from weft.layers.norm import Norm
from weft.mixers import MIXERS, Frame
from weft.models import Stack, sandwich
from weft.models.stack.sublayer import StackInputs

FULL = MIXERS["full"]
VALID = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def layer_norm(x, module):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (var + 1e-5).sqrt() * module.weight + module.bias


def by_hand_attention(x, mixer, causal):
    p, (b, n, c), h = mixer.project, x.shape, mixer.frame.heads
    q, k, v = (
        F.linear(x, m.weight, m.bias).reshape(b, n, h, c // h) for m in (p.to_q, p.to_k, p.to_v)
    )
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(c // h)
    if causal:
        scores = scores + torch.full((n, n), -math.inf, dtype=x.dtype).triu(1)
    y = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).reshape(b, n, c)
    return F.linear(y, p.to_out.weight, p.to_out.bias)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_two_layers_written_by_hand(place, causal):
    config = stack(mixer=FULL(), norm=Norm(place=place), feedforward=Dense(activation="relu"))
    module, x = built(config, causal=causal).eval(), normal(2, 5, DIM)
    y = x
    for i, sub in enumerate(module.sublayers):
        z = layer_norm(y, sub.norm) if place == "pre" else y
        if i % 2 == 0:
            z = by_hand_attention(z, sub.body, causal)
        else:
            z = sub.body.to_out(sub.body.to_hidden(z).clamp(min=0))
        y = y + z if place == "pre" else layer_norm(y + z, sub.norm)
    y = layer_norm(y, module.norm) if place == "pre" else y
    torch.testing.assert_close(module(x), y, rtol=1e-10, atol=1e-10)


def copy_attention(theirs: nn.MultiheadAttention, ours) -> None:
    parts = ours.project.to_q, ours.project.to_k, ours.project.to_v
    theirs.in_proj_weight.copy_(torch.cat([m.weight for m in parts]))
    theirs.in_proj_bias.copy_(torch.cat([m.bias for m in parts]))
    copy(theirs.out_proj, ours.project.to_out)


def copy(theirs: nn.Module, ours: nn.Module) -> None:
    theirs.load_state_dict(ours.state_dict())


@torch.no_grad()
def torch_layer(kind, place, subs):
    """A layer of torch.nn with the parameters of our sublayers, "sf" or "scf"."""
    layer = kind(
        DIM, 3, 4 * DIM, 0.0, batch_first=True, norm_first=place == "pre", dtype=torch.float64
    )
    copy_attention(layer.self_attn, subs[0].body)
    if len(subs) == 3:
        copy_attention(layer.multihead_attn, subs[1].body)
    for i, sub in enumerate(subs):
        copy(getattr(layer, f"norm{i + 1}"), sub.norm)
    copy(layer.linear1, subs[-1].body.to_hidden)
    copy(layer.linear2, subs[-1].body.to_out)
    return layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_equals_torch_transformer_encoder(place, causal):
    config = stack(mixer=FULL(), norm=Norm(place=place), feedforward=Dense(activation="relu"))
    ours, x = built(config, causal=causal), normal(2, 5, DIM)
    y = x
    mask = nn.Transformer.generate_square_subsequent_mask(5).isinf() if causal else None
    for pair in (ours.sublayers[:2], ours.sublayers[2:]):
        layer = torch_layer(nn.TransformerEncoderLayer, place, pair)
        y = layer(y, src_mask=mask, src_key_padding_mask=~VALID)
    y = ours.norm(y)
    torch.testing.assert_close(ours(x, valid=VALID)[VALID], y[VALID], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_equals_torch_transformer_decoder(place):
    settings = {"norm": Norm(place=place), "feedforward": Dense(activation="relu")}
    config = stack(order="scfscf", mixer=FULL(), cross=FULL(), **settings)
    ours, x, context = built(config, causal=True), normal(2, 7, DIM), normal(2, 5, DIM, seed=1)
    y = x
    mask = nn.Transformer.generate_square_subsequent_mask(7).isinf()
    for three in (ours.sublayers[:3], ours.sublayers[3:]):
        layer = torch_layer(nn.TransformerDecoderLayer, place, three)
        y = layer(y, context, tgt_mask=mask, memory_key_padding_mask=~VALID)
    y = ours.norm(y)
    got = ours(x, context=context, context_valid=VALID)
    torch.testing.assert_close(got, y, rtol=1e-10, atol=1e-10)


def test_sandwich_is_the_papers():
    assert sandwich(3, 0) == "sfsfsf"
    assert sandwich(4, 2) == "sssfsfff"
    assert sandwich(16, 6) == "s" * 6 + "sf" * 10 + "f" * 6
    for order in ("sfsfsfsf", sandwich(4, 1), sandwich(4, 4)):
        module = stack(order=order).build()
        assert "".join(sub.letter for sub in module.sublayers) == order
        assert sum(p.numel() for p in module.parameters()) == sum(
            p.numel() for p in stack(order="sfsfsfsf").build().parameters()
        )


def test_sublayers_run_in_order():
    module, x = built(stack(order="ssff")).eval(), normal(2, 5, DIM)
    y = x
    for sub in module.sublayers[:2]:
        mean = sub.norm(y).mean(1, keepdim=True)
        y = y + F.linear(mean, sub.body.to_out.weight, sub.body.to_out.bias)
    for sub in module.sublayers[2:]:
        y = y + sub.body(sub.norm(y))
    torch.testing.assert_close(module(x), module.norm(y))


def test_settings_per_layer():
    mixers = RunningMean(gain=1.0), RunningMean(gain=2.0), RunningMean(gain=3.0)
    module = stack(order="ssfs", mixer=mixers).build(causal=True)
    assert [mixer.config.gain for mixer in module.mixers] == [1.0, 2.0, 3.0]
    assert [mixer.frame.layer for mixer in module.mixers] == [0, 1, 2]
    assert all(mixer.frame.causal for mixer in module.mixers)


def test_feed_forwards_per_layer():
    wide, narrow = Dense(expansion=3), Dense(expansion=1)
    module = stack(order="fsff", feedforward=(wide, narrow, wide)).build()
    found = [sub.body.config for sub in module.sublayers if sub.letter == "f"]
    assert found == [wide, narrow, wide]
    assert stack(feedforward="dense(expansion=3), dense(expansion=1)").feedforwards == (
        wide,
        narrow,
    )
    assert stack(feedforward=wide).feedforwards == (wide, wide)


def test_registers_lengthen_the_frame():
    module = stack(frame={"length": 40}, order="s").build(registers=3)
    assert module.mixers[0].frame.length == 43


def test_cross_attention_has_its_own_frame():
    from weft.layers.positions import Alibi

    config = stack(order="scsc", mixer=FULL(), frame={"positions": Alibi()})
    module = config.build(causal=True)
    crossing = [sub.body.frame for sub in module.sublayers if sub.letter == "c"]
    assert [(f.causal, f.layer, f.positions) for f in crossing] == [
        (False, 0, None),
        (False, 1, None),
    ]


def test_a_class_that_shares_parameters_is_asked_once():
    calls = []

    class Sharing(RunningMean):
        name = "sharing"

        @classmethod
        def tie(cls, mixers):
            calls.append(mixers)
            for mixer in mixers[1:]:
                mixer.to_out = mixers[0].to_out

    module = stack(order="sss", mixer=(Sharing(), RunningMean(), Sharing())).build()
    first, other, last = module.mixers
    assert calls == [[first, last]]
    assert first.to_out is last.to_out is not other.to_out


def test_linformer_shares_across_layers():
    config = stack(mixer="linformer(rank=4, sharing='layers')")
    first, second = config.build().mixers
    assert first.compress_k is second.compress_k


def test_spec_strings_are_configs():
    config = stack(mixer="full, linformer(rank=4)", feedforward="dense(activation='relu')")
    assert config.mixer == (FULL(), MIXERS["linformer"](rank=4))
    assert config.feedforward == Dense(activation="relu")
    assert stack(mixer=["full", FULL()]).mixer == (FULL(), FULL())
    assert stack(mixer="full").mixers == (FULL(), FULL())


@pytest.mark.parametrize(("place", "shrinks"), [("pre", True), ("post", False)])
def test_outputs_start_small_before_deep_stacks(place, shrinks):
    module = stack(order="sf" * 8, mixer=FULL(), norm=Norm(place=place), frame={"dim": 96}).build()
    for sub in module.sublayers:
        out = sub.body.project.to_out if sub.letter == "s" else sub.body.to_out
        bound = out.in_features**-0.5 * (0.25 if shrinks else 1.0)
        assert 0.99 * bound < out.weight.abs().max() <= bound
        entry = sub.body.project.to_q if sub.letter == "s" else sub.body.to_hidden
        assert entry.weight.abs().max() > 0.99 * entry.in_features**-0.5


def test_variance_does_not_grow_with_depth():
    torch.manual_seed(0)
    for layers in (2, 32):
        config = stack(order="sf" * layers, mixer=FULL(), frame={"dim": 48})
        module, x = config.build(causal=True).double(), normal(2, 16, 48)
        for sub in module.sublayers:
            x = sub(x, StackInputs())
        assert 0.9 < x.var() < 1.6


def test_dropout_acts_on_what_is_added():
    torch.manual_seed(0)
    module, x = stack(order="s", dropout=0.5).build().double(), normal(1, 4, DIM)
    sub = module.sublayers[0]
    added = sub.body(sub.norm(x))
    torch.manual_seed(3)
    kept = F.dropout(torch.ones_like(added), 0.5)
    torch.manual_seed(3)
    torch.testing.assert_close(module(x), module.norm(x + added * kept))
    torch.testing.assert_close(module.eval()(x), module.norm(x + added))


class Deaf(RunningMean):
    name = "deaf"
    traits = MIXERS["fnet"]().traits


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"order": "sxfz"}, WeftError, "got 'x', 'z' in 'sxfz'"),
        ({"order": "ff"}, WeftError, "at least one 's'.* got 'ff'"),
        ({"order": ""}, WeftError, "at least one 's'"),
        ({"mixer": (RunningMean(),) * 3}, WeftError, "'sfsf' has 2 's' sublayers.* got 3"),
        ({"mixer": 5}, WeftError, "Stack.mixer is a mixer.*; got 5"),
        ({"mixer": "ful"}, WeftError, "did you mean 'full'"),
        ({"feedforward": "dense, dense, dense"}, WeftError, "'sfsf' has 2 'f' .* got 3"),
        ({"cross": "full, full"}, WeftError, "Stack.cross is one mixer; got 2"),
        ({"cross": Deaf(), "order": "sc"}, Unsupported, "deaf cannot; set cross= .* full"),
        ({"frame": {"causal": True}}, WeftError, "set by the model .* got causal=True"),
        ({"frame": {"layer": 1}}, WeftError, "layer=1"),
        ({"dropout": 1.0}, WeftError, r"in \[0, 1\); got 1.0"),
        ({"recompute": "all"}, WeftError, "recompute is one of .*; got 'all'"),
        (
            {"recompute": "reversible", "norm": Norm(place="post")},
            WeftError,
            "cannot be undone, .* got place='post'",
        ),
    ],
)
def test_refuses(settings, error, message):
    with pytest.raises(error, match=message):
        stack(**settings)


def test_refuses_a_missing_context():
    module = stack(order="sc").build()
    with pytest.raises(WeftError, match="reads a context, and none was given"):
        module(normal(2, 5, DIM).float())


def test_refuses_a_bad_sandwich():
    with pytest.raises(WeftError, match="4 layers has 0 to 4 ends; got 5"):
        sandwich(4, 5)


def test_defaults_are_a_small_transformer():
    config = Stack(frame=Frame(dim=16))
    assert (config.order, config.mixer, config.feedforward) == ("sf" * 6, FULL(), Dense())

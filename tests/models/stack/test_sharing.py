"""Layers that share their parameters: really, once in files, with states of their own; ALBERT."""

import pytest
import torch
from model_parts import DIM, RunningMean, built, decoder, encoder, ids, normal, stack
from safetensors.torch import load_file

from weft.errors import WeftError
from weft.feedforward import Dense
from weft.layers.norm import Norm
from weft.mixers import MIXERS
from weft.models import EncoderDecoder, LanguageModel, load, save
from weft.models.stack.sublayer import StackInputs

FULL = MIXERS["full"]


@pytest.mark.parametrize("of_layer", ["0000", "0011", "0012", "0123"])
def test_groups(of_layer):
    groups = int(of_layer[-1]) + 1
    module = stack(order="sf" * 4, mixer=FULL(), shared=groups).build()
    first = [module.running[layer[0]] for layer in module.layers]
    number = {sub: i for i, sub in enumerate(dict.fromkeys(first))}
    assert "".join(str(number[sub]) for sub in first) == of_layer
    assert len(module.sublayers) == 2 * groups


def test_is_the_same_block_repeated():
    module, x = built(stack(order="sf" * 3, mixer=FULL(), shared=1)).eval(), normal(2, 5, DIM)
    y = x
    for _ in range(3):
        for sub in module.sublayers:
            y = sub(y, StackInputs())
    torch.testing.assert_close(module(x), module.norm(y), rtol=1e-12, atol=1e-12)


def test_counts_its_parameters_once():
    sizes = {
        shared: sum(p.numel() for p in stack(order="sf" * 4, shared=shared).build().parameters())
        for shared in (0, 1, 2)
    }
    last = 2 * DIM  # the last norm is no layer's
    assert sizes[0] - last == 4 * (sizes[1] - last) == 2 * (sizes[2] - last)


def test_files_hold_them_once(tmp_path):
    config = decoder(order="sf" * 4, mixer=FULL(), shared=2)
    model, x = built(config).eval(), ids(2, 7)
    names = load_file(save(model, tmp_path / "model") / "model.safetensors").keys()
    assert names == model.state_dict().keys() == dict(model.named_parameters()).keys()
    again = load(tmp_path / "model")
    assert again.config == config
    assert torch.equal(again(x), model(x))


def test_states_stay_one_per_layer():
    model, x = built(decoder(order="sf" * 3, mixer=FULL(), shared=1)).eval(), ids(2, 9)
    state, parts = model.start(2), []
    for part in x.split((2, 1, 6), dim=1):
        y, state = model.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(x), rtol=1e-10, atol=1e-10)
    assert state.size() == model.state_size(9) == 3 * 2 * 9 * DIM


@pytest.mark.parametrize("sides", ["encoder", "decoder", "both"])
def test_either_side_of_an_encoder_decoder(sides):
    model = EncoderDecoder(
        encoder=encoder(order="sf" * 2, mixer=FULL(), shared=int(sides != "decoder")),
        decoder=decoder(order="scf" * 2, mixer=FULL(), shared=int(sides != "encoder")),
    )
    module = built(LanguageModel(trunk=model)).eval()
    assert len(module.trunk.encoder.stack.sublayers) == (4 if sides == "decoder" else 2)
    assert len(module.trunk.decoder.stack.sublayers) == (6 if sides == "encoder" else 3)
    x, source = ids(2, 6), ids(2, 5, seed=1)
    first, state = module.step(x[:, :2], module.start(2, source=source))
    rest, _ = module.step(x[:, 2:], state)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), module(x, source=source))


@pytest.mark.parametrize("recompute", ["checkpoint", "reversible"])
def test_gradients_add_up_over_the_layers(recompute):
    x = normal(2, 5, DIM)
    shared = built(stack(order="sf" * 3, mixer=FULL(), shared=1, recompute=recompute))
    shared(x).square().sum().backward()
    apart = built(stack(order="sf" * 3, mixer=FULL(), recompute=recompute))
    for i, sub in enumerate(apart.sublayers):
        sub.load_state_dict(shared.sublayers[i % 2].state_dict())
    apart.norm.load_state_dict(shared.norm.state_dict())
    apart(x).square().sum().backward()
    for i, sub in enumerate(shared.sublayers):
        same = [dict(other.named_parameters()) for other in apart.sublayers[i::2]]
        for name, parameter in sub.named_parameters():
            total = sum(each[name].grad for each in same)
            torch.testing.assert_close(parameter.grad, total, rtol=1e-9, atol=1e-9)


def albert(layers, groups):
    transformers = pytest.importorskip("transformers", reason="parity with its implementation")
    config = transformers.AlbertConfig(
        vocab_size=11,
        embedding_size=DIM,
        hidden_size=DIM,
        num_hidden_layers=layers,
        num_hidden_groups=groups,
        num_attention_heads=3,
        intermediate_size=20,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.AlbertModel(config, add_pooling_layer=False).double().eval()


@pytest.mark.parametrize(("layers", "groups"), [(3, 1), (4, 2)])
@torch.no_grad()
def test_equals_albert(layers, groups):
    theirs = albert(layers, groups)
    config = stack(
        order="sf" * layers,
        mixer=FULL(),
        feedforward=Dense(activation="gelu", hidden=20),
        norm=Norm(place="post", eps=1e-12),
        shared=groups,
    )
    ours = config.build().double().eval()
    for group in range(groups):
        layer = theirs.encoder.albert_layer_groups[group].albert_layers[0]
        mixing, feeding = ours.sublayers[2 * group : 2 * group + 2]
        named = {
            "query": mixing.body.project.to_q,
            "key": mixing.body.project.to_k,
            "value": mixing.body.project.to_v,
            "dense": mixing.body.project.to_out,
        }
        for name, module in layer.attention.named_modules():
            if name in named:
                named[name].load_state_dict(module.state_dict())
        mixing.norm.load_state_dict(layer.attention.LayerNorm.state_dict())
        feeding.body.to_hidden.load_state_dict(layer.ffn.state_dict())
        feeding.body.to_out.load_state_dict(layer.ffn_output.state_dict())
        feeding.norm.load_state_dict(layer.full_layer_layer_norm.state_dict())
    x = ids(2, 7)
    valid = torch.arange(7)[None] < torch.tensor([[7], [4]])
    entered = theirs.encoder.embedding_hidden_mapping_in(theirs.embeddings(x))
    expected = theirs(x, attention_mask=valid.long()).last_hidden_state
    got = ours(entered, valid=valid)
    torch.testing.assert_close(got[valid], expected[valid], rtol=1e-9, atol=1e-9)
    once = ours.sublayers[1](ours.sublayers[0](entered, StackInputs(valid)), StackInputs(valid))
    assert (once[valid] - expected[valid]).abs().max() > 1e-3  # one layer alone is not the answer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shared": 3}, "groups for 2 layers.* got shared=3"),
        ({"shared": -1}, "got shared=-1"),
        ({"shared": 1, "order": "ssf"}, "layers 0 and 1 share .* one order and one setting"),
        ({"shared": 1, "mixer": (RunningMean(), RunningMean(gain=2.0))}, "layers 0 and 1 share"),
        ({"shared": 1, "feedforward": (Dense(), Dense(expansion=2))}, "layers 0 and 1 share"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        stack(**settings)

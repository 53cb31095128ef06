"""Transparent attention against a decoder that is fed the mixes by hand."""

import pytest
import torch
from model_parts import built, decoder, encoder, ids

from weft.errors import Unsupported
from weft.layers.norm import Norm
from weft.mixers import MIXERS
from weft.models import EncoderDecoder, load, save
from weft.models.stack.sublayer import StackInputs

FULL = MIXERS["full"]
SOURCE_VALID = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]], dtype=torch.bool)


def config(place="pre", embed=None, **settings):
    parts = {"mixer": FULL(), "norm": Norm(place=place)}
    return EncoderDecoder(
        encoder=encoder(embed, order="sf" * 3, **parts, **settings),
        decoder=decoder(order="scf" * 2, **parts),
        transparent=True,
    )


def contexts(model, source, valid):
    """z_j of each reading sublayer, layer by layer and sum by sum."""
    trunk = model.encoder
    h, everything = trunk.begin(source, valid)
    states = [h]
    for layer in range(3):
        for sub in trunk.stack.sublayers[2 * layer : 2 * layer + 2]:
            h = sub(h, StackInputs(everything))
        states.append(h)
    found = []
    for j in range(2):
        logits = model.mix.logits[:, j]
        share = logits.exp() / logits.exp().sum()
        mixed = sum(share[i] * states[i] for i in range(4))
        found.append(trunk.stack.norm(mixed)[:, trunk.registers :])
    return found


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("registers", [0, 1])
def test_every_decoder_layer_reads_its_own_mix(place, registers):
    model = built(config(place, {"registers": registers})).eval()
    x, source = ids(2, 6), ids(2, 5, seed=1)
    z = contexts(model, source, SOURCE_VALID)
    h, _ = model.decoder.begin(x, None)
    for layer in range(2):
        given = StackInputs(None, z[layer], SOURCE_VALID)
        for sub in model.decoder.stack.sublayers[3 * layer : 3 * layer + 3]:
            h = sub(h, given)
    expected = model.decoder.stack.norm(h)
    got = model(x, source=source, source_valid=SOURCE_VALID)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        model.mix.logits.copy_(model.mix.logits.flip(1))
    assert (model(x, source=source, source_valid=SOURCE_VALID) - expected).abs().max() > 1e-4


def test_all_weight_on_the_last_layer_is_an_ordinary_model():
    model = built(config()).eval()
    with torch.no_grad():
        model.mix.logits.fill_(-torch.inf)
        model.mix.logits[3] = 0.0
    x, source = ids(2, 6), ids(2, 5, seed=1)
    plain = EncoderDecoder(encoder=model.config.encoder, decoder=model.config.decoder).build()
    plain = plain.double().eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "mix.logits"})
    torch.testing.assert_close(model(x, source=source), plain(x, source=source))


@pytest.mark.parametrize("shared", [0, 1])
def test_decodes_selects_and_saves(shared, tmp_path):
    parts = {"mixer": FULL(), "shared": shared}
    made = EncoderDecoder(
        encoder=encoder(order="sf" * 2, **parts),
        decoder=decoder(order="scf" * 2, **parts),
        transparent=True,
    )
    model = built(made).eval()
    x, source = ids(2, 6), ids(2, 5, seed=1)
    whole = model(x, source=source, source_valid=SOURCE_VALID)
    state = model.start(2, source=source, source_valid=SOURCE_VALID)
    first, state = model.step(x[:, :2], state)
    swapped, _ = model.step(x[:, 2:].flip(0), state.select(torch.tensor([1, 0])))
    got = torch.cat((first, swapped.flip(0)), dim=1)
    torch.testing.assert_close(got, whole, rtol=1e-10, atol=1e-10)
    again = load(save(model, tmp_path / "model"))
    assert torch.equal(again(x, source=source, source_valid=SOURCE_VALID), whole)


def test_weights_learn_and_begin_equal():
    model = config(dropout=0.5).build().double()
    assert torch.equal(model.mix.logits, torch.zeros(4, 2, dtype=torch.float64))
    model(ids(2, 6), source=ids(2, 5)).square().sum().backward()
    assert model.mix.logits.grad.abs().max() > 0


def test_dropout_acts_on_the_matrix():
    model = built(config(dropout=0.5)).train()
    states = [torch.ones(1, 1, 1, dtype=torch.float64) * i for i in range(4)]
    draws = {tuple(model.mix(states).flatten().tolist()) for _ in range(20)}
    assert len(draws) > 5
    model.eval()
    assert len({tuple(model.mix(states).flatten().tolist()) for _ in range(3)}) == 1


@pytest.mark.parametrize("settings", [{"recompute": "reversible"}, {"depth": "universal"}])
def test_refuses(settings):
    with pytest.raises(Unsupported, match="transparent attention"):
        config(**settings)

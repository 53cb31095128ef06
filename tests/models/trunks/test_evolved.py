"""Evolved Transformer cells: their parts in order, in models of every kind."""

import pytest
import torch
from model_parts import DIM, built, embedding, ids, normal

from weft.errors import WeftError
from weft.mixers import Frame
from weft.models import Decoder, Encoder, EncoderDecoder, Stack, load, save
from weft.models.trunks.evolved import evolved_decoder, evolved_encoder

FRAME = Frame(dim=DIM, heads=3, length=40)


def test_an_encoder_cell_by_hand():
    module = built(Stack(frame=FRAME, **evolved_encoder(2))).eval()
    x = normal(2, 9, DIM)
    y = x
    for cell in (module.sublayers[:4], module.sublayers[4:]):
        gate, convolution, attention, feeding = cell
        z = gate.norm(y)
        y = y + gate.body.to_out(z) * torch.sigmoid(gate.body.to_gate(z))
        y = y + convolution.body.reference(convolution.norm(y))
        y = y + attention.body.reference(attention.norm(y))
        hidden = feeding.body.to_hidden(feeding.norm(y)).clamp(min=0)
        y = y + feeding.body.to_out(hidden)
    torch.testing.assert_close(module(x), module.norm(y), rtol=1e-10, atol=1e-10)
    assert [len(layer) for layer in module.layers] == [4, 4]


def test_a_decoder_cell_by_hand():
    module = built(Stack(frame=FRAME, **evolved_decoder(1, heads=3)), causal=True).eval()
    x, context = normal(2, 9, DIM), normal(2, 5, DIM, seed=1)
    side, convolution, attention, reading, feeding = module.sublayers
    assert (side.body.mixer.frame.heads, attention.body.frame.heads) == (6, 3)
    z = side.norm(x)
    y = x + side.body.mixer.reference(z) + side.body.cross.reference(z, context=context)
    y = y + convolution.body.reference(convolution.norm(y))
    y = y + attention.body.reference(attention.norm(y))
    y = y + reading.body.reference(reading.norm(y), context=context)
    hidden = feeding.body.to_hidden(feeding.norm(y))
    y = y + feeding.body.to_out(hidden * torch.sigmoid(hidden))
    torch.testing.assert_close(module(x, context=context), module.norm(y), rtol=1e-10, atol=1e-10)


def test_an_encoder_decoder_decodes_and_saves(tmp_path):
    config = EncoderDecoder(
        encoder=Encoder(embedding=embedding(), stack=Stack(frame=FRAME, **evolved_encoder(2))),
        decoder=Decoder(
            embedding=embedding(), stack=Stack(frame=FRAME, **evolved_decoder(2, heads=3))
        ),
    )
    model, x, source = built(config).eval(), ids(2, 17), ids(2, 6, seed=1)
    whole, state, parts = model(x, source=source), model.start(2, source=source), []
    for part in x.split((1, 4, 12), dim=1):
        y, state = model.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)
    assert state.size() == model.state_size(17)
    again = load(save(model, tmp_path / "model"))
    assert again.config == config
    assert torch.equal(again(x, source=source), whole)


def test_a_decoder_alone_has_no_context():
    stack = Stack(frame=FRAME, **evolved_decoder(2, heads=3, context=False))
    model, x = built(Decoder(embedding=embedding(), stack=stack)).eval(), ids(2, 9)
    first, state = model.step(x[:, :4], model.start(2))
    rest, _ = model.step(x[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), model(x), rtol=1e-9, atol=1e-9)


def test_refuses_no_cell():
    with pytest.raises(WeftError, match="got cells=0"):
        evolved_encoder(0)
    with pytest.raises(WeftError, match="got cells=0"):
        evolved_decoder(0, heads=2)

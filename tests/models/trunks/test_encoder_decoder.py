import pytest
import torch
from model_parts import built, decoder, encoder, ids

from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.models import EncoderDecoder

FULL = MIXERS["full"]
SOURCE_VALID = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 1, 1, 0]], dtype=torch.bool)


def config(shares=False, **settings):
    reading = decoder(order="scfscf", mixer=FULL(), cross=FULL(), **settings)
    return EncoderDecoder(encoder=encoder(mixer=FULL()), decoder=reading, shares_embedding=shares)


def test_decoder_reads_the_encoders_output():
    model, target, source = built(config()), ids(2, 4), ids(2, 5, seed=1)
    context = model.encoder(source, valid=SOURCE_VALID)
    expected = model.decoder(target, context=context, context_valid=SOURCE_VALID)
    got = model(target, source=source, source_valid=SOURCE_VALID)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_padding_on_either_side_changes_nothing():
    model, target, source = built(config()), ids(2, 4), ids(2, 5, seed=1)
    valid = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    y = model(target, valid=valid, source=source, source_valid=SOURCE_VALID)
    for row in range(2):
        alone = model(target[row][valid[row]][None], source=source[row][SOURCE_VALID[row]][None])
        torch.testing.assert_close(y[row][valid[row]], alone[0])


def test_the_source_is_read_without_order_in_time():
    model, target, source = built(config()), ids(1, 4), ids(1, 5, seed=1)
    other = source.clone()
    other[:, -1] = (other[:, -1] + 1) % 11
    assert not torch.allclose(model(target, source=source)[:, 0], model(target, source=other)[:, 0])


@pytest.mark.parametrize("split", [[4], [1, 1, 1, 1], [2, 2]])
def test_steps_equal_forward(split):
    model, target, source = built(config()).eval(), ids(2, 4), ids(2, 5, seed=1)
    state, outputs = model.start(2, source=source, source_valid=SOURCE_VALID), []
    for piece in target.split(split, dim=1):
        y, state = model.step(piece, state)
        outputs.append(y)
    whole = model(target, source=source, source_valid=SOURCE_VALID)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-10, atol=1e-12)
    assert state.size() == model.state_size(4)


def test_one_table_for_both_sides():
    model = built(config(shares=True))
    assert model.encoder.embedding.table is model.decoder.embedding.table
    names = [name for name, _ in model.named_parameters() if name.endswith("table")]
    assert len(names) == 1
    apart = built(config())
    assert apart.encoder.embedding.table is not apart.decoder.embedding.table


def test_reversible_gradients_reach_the_encoder():
    plain, reverse = config(), config(recompute="reversible")
    model = built(reverse)
    model(ids(2, 4), source=ids(2, 5, seed=1)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.encoder.parameters() if p.dim() > 1)
    assert plain != reverse


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EncoderDecoder(encoder=encoder(), decoder=decoder()),
            "got order 'sfsf', try 'scfscf'",
        ),
        (
            lambda: EncoderDecoder(
                encoder=encoder(frame={"dim": 24}), decoder=decoder(order="sc", cross=FULL())
            ),
            "one width; got dim=24 and dim=12",
        ),
        (
            lambda: EncoderDecoder(
                encoder=encoder(embed={"vocab": 5}),
                decoder=decoder(order="sc", cross=FULL()),
                shares_embedding=True,
            ),
            "got vocab=5 and vocab=11",
        ),
        (lambda: built(config()).start(3, source=ids(2, 5)), "got 2 for batch=3"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(WeftError, match=message):
        make()


def test_tables_are_apart_and_all_layers_read_the_last_one_unless_asked():
    config = EncoderDecoder(encoder=encoder(), decoder=decoder(order="scf"))
    assert (config.shares_embedding, config.transparent) == (False, False)
    model = built(config)
    assert model.encoder.embedding.table is not model.decoder.embedding.table

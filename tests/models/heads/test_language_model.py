import pytest
import torch
from model_parts import DIM, VOCAB, built, decoder, encoder, ids

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS
from weft.models import Decoder, EncoderDecoder, LanguageModel

FULL = MIXERS["full"]


def both():
    reading = decoder(order="scf", mixer=FULL(), cross=FULL())
    return EncoderDecoder(encoder=encoder(mixer=FULL()), decoder=reading)


@pytest.mark.parametrize("trunk", [encoder, decoder])
def test_tied_scores_are_products_with_the_table(trunk):
    model = built(LanguageModel(trunk=trunk()))
    hidden = model.trunk(ids(2, 5))
    expected = torch.einsum("bnc,vc->bnv", hidden, model.trunk.embedding.table) / DIM**0.5
    torch.testing.assert_close(model(ids(2, 5)), expected)
    assert not any(name.startswith("head") for name, _ in model.named_parameters())


def test_untied_scores_have_a_matrix_of_their_own():
    model = built(LanguageModel(trunk=decoder(), tied=False))
    assert model.head.shape == (VOCAB, DIM)
    expected = torch.einsum("bnc,vc->bnv", model.trunk(ids(2, 5)), model.head)
    torch.testing.assert_close(model(ids(2, 5)), expected)


def test_tying_trains_one_table_from_both_ends():
    model = built(LanguageModel(trunk=decoder()))
    model(ids(2, 5)).logsumexp(-1).sum().backward()
    unused = sorted(set(range(VOCAB)) - set(ids(2, 5).flatten().tolist()))
    assert model.trunk.embedding.table.grad[unused].abs().min() > 0


def test_scores_start_small():
    """A matrix of its own starts near uniform; tied, tokens that were not read score about 1."""
    torch.manual_seed(0)
    trunk, x = decoder(frame={"dim": 96, "heads": 4}), ids(4, 30)
    losses = LanguageModel(trunk=trunk, tied=False).build()(x).log_softmax(-1).mean()
    assert losses.item() == pytest.approx(-torch.tensor(VOCAB).log().item(), abs=0.1)
    scores = LanguageModel(trunk=trunk).build()(x)
    other = scores[torch.arange(VOCAB) != x[..., None]]
    assert 0.5 < other.std().item() < 1.5


def test_steps_equal_forward():
    model = built(LanguageModel(trunk=decoder(mixer=FULL()))).eval()
    x = ids(2, 6)
    first, state = model.step(x[:, :2], model.start(2))
    second, state = model.step(x[:, 2:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), model(x))
    assert state.size() == model.state_size(6)


def test_steps_of_an_encoder_decoder_equal_forward():
    model = built(LanguageModel(trunk=both())).eval()
    x, source = ids(2, 6), ids(2, 4, seed=1)
    keep = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    whole = model(x, source=source, source_valid=keep)
    y, _ = model.step(x, model.start(2, source=source, source_valid=keep))
    torch.testing.assert_close(y, whole)
    assert not torch.allclose(whole, model(x, source=source))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LanguageModel(trunk=decoder().stack), WeftError, "an Encoder .* or a Decoder"),
        (
            lambda: LanguageModel(
                trunk=Decoder(embedding=Embedding(channels=3), stack=decoder().stack)
            ),
            WeftError,
            "has a vocab; got channels=3",
        ),
        (lambda: built(LanguageModel(trunk=encoder())).start(1), Unsupported, "reads both ways"),
        (
            lambda: built(LanguageModel(trunk=encoder())).generate(ids(1, 2), 3),
            Unsupported,
            "build the language model on a Decoder",
        ),
        (lambda: built(LanguageModel(trunk=both()))(ids(1, 2)), WeftError, "give source="),
        (
            lambda: built(LanguageModel(trunk=decoder()))(ids(1, 2), source=ids(1, 2)),
            WeftError,
            "only an encoder-decoder reads a source; .*Decoder",
        ),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_whole_model_compiles_into_one_graph():
    settings = {"mixer": FULL(), "embed": {"positions": "learned", "registers": 1}}
    model = built(LanguageModel(trunk=decoder(**settings)))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids(2, 9)), model(ids(2, 9)))

import pytest
import torch
from model_parts import DIM, built, encoder, ids, normal, stack

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.mixers import MIXERS, Frame, Traits
from weft.models import Classifier, Encoder, Stack

FULL = MIXERS["full"]
PADDED = torch.tensor(
    [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1, 0, 1]],
    dtype=torch.bool,
)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_is_embedding_then_stack(place):
    model = built(encoder(embed={"registers": 2}, norm=Norm(place=place))).eval()
    x = model.embedding(ids(2, 5))
    x = torch.cat((model.embedding.registers.repeat(2, 1, 1), x), 1)
    if place == "post":
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        x = (x - mean) / (var + 1e-5).sqrt() * model.norm.weight + model.norm.bias
    y = model.stack(x)
    registers, tokens = model.read(ids(2, 5))
    torch.testing.assert_close(registers, y[:, :2])
    torch.testing.assert_close(tokens, y[:, 2:])
    torch.testing.assert_close(model(ids(2, 5)), y[:, 2:])


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
@pytest.mark.parametrize("recompute", ["nothing", "reversible"])
def test_padding_anywhere_changes_nothing(registers, positions, recompute):
    embed = {"registers": registers, "positions": positions}
    model = built(encoder(embed, mixer=FULL(), recompute=recompute, frame={"length": 5}))
    x = ids(3, 8, seed=1)
    y = model(x, valid=PADDED)
    assert (y[~PADDED] == 0).all()
    for row in range(3):
        alone = model(x[row][PADDED[row]][None])
        torch.testing.assert_close(y[row][PADDED[row]], alone[0], rtol=1e-10, atol=1e-12)
    hidden = model(x.masked_fill(~PADDED, -1), valid=PADDED)
    torch.testing.assert_close(hidden, y, rtol=0, atol=0)


def test_a_row_of_padding_alone_is_harmless():
    model = built(encoder(mixer=FULL()))
    valid = torch.tensor([[True, True, True], [False, False, False]])
    y = model(ids(2, 3), valid=valid)
    assert (y[1] == 0).all()
    torch.testing.assert_close(y[:1], model(ids(2, 3)[:1]))
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_continuous_inputs():
    config = Encoder(embedding=Embedding(channels=3), stack=stack())
    model, x = built(config), normal(2, 5, 3)
    torch.testing.assert_close(model(x), model.stack(model.embedding.linear(x)))


def test_registers_learn():
    model = built(encoder(embed={"registers": 2}, mixer=FULL()))
    model(ids(2, 5)).square().sum().backward()
    assert model.embedding.registers.grad.abs().min() > 0


def test_dropout_acts_on_the_embedding():
    torch.manual_seed(0)
    model = encoder(dropout=0.5, order="s").build()
    entered = model.enter(torch.ones(1, 50, DIM))
    assert sorted(entered.unique().tolist()) == [0.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite(dtype):
    model = built(encoder(mixer=FULL()), dtype=dtype)
    y = model(ids(3, 8), valid=PADDED)
    assert y.dtype == dtype
    truth = built(encoder(mixer=FULL()))(ids(3, 8), valid=PADDED)
    torch.testing.assert_close(y.double(), truth, rtol=0.05, atol=0.1)


def test_refuses_a_context():
    with pytest.raises(WeftError, match=r"an encoder has no context.* got 'sc'"):
        encoder(order="sc")


def test_refuses_a_mixer_that_cannot_look_ahead():
    class Past(FULL):
        traits = Traits(family="", paper="", time="", memory="", causal=True, bidirectional=False)

    with pytest.raises(Unsupported, match="is causal by construction"):
        encoder(mixer=Past()).build()


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize(
    "valid",
    [torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 8, dtype=torch.bool), torch.ones(2, 7)],
    ids=["shorter", "longer", "numbers"],
)
def test_a_mask_that_does_not_fit_is_refused_before_anything_moves(valid, trimmed):
    """Tokens that no one marked would else be lost without a word."""
    embedding = Embedding(vocab=9, registers=1)
    trunk = Encoder(embedding=embedding, stack=Stack(frame=Frame(dim=8, heads=2), order="sf"))
    model = Classifier(trunk=trunk, classes=2, pool="first", trimmed=trimmed).build()
    with pytest.raises(WeftError, match="valid is a boolean"):
        model(torch.randint(0, 9, (2, 7)), valid=valid)

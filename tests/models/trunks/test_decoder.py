import pytest
import torch
from model_parts import DIM, VOCAB, RunningMean, built, decoder, ids, normal

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.positions import Rope
from weft.mixers import MIXERS
from weft.models import Decoder

FULL = MIXERS["full"]
CASES = {
    "running mean": {},
    "full": {"mixer": FULL()},
    "mixed": {"mixer": (RunningMean(), FULL()), "frame": {"positions": Rope()}},
    "registers": {"mixer": FULL(), "embed": {"registers": 3}},
    "learned": {"embed": {"positions": "learned"}},
    "post": {"norm": Norm(place="post"), "embed": {"registers": 1}},
    "sandwich": {"order": "ssfsff"},
    "reversible": {"recompute": "reversible", "embed": {"registers": 2}},
}
CASES["mixed"]["frame"] = {"positions": Rope(), "heads": 2}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("split", [[9], [1] * 9, [4, 1, 3, 1]])
def test_any_split_into_steps_equals_forward(case, split):
    model = built(decoder(**CASES[case])).eval()
    x = ids(2, 9)
    state, outputs = model.start(2), []
    for piece in x.split(split, dim=1):
        y, state = model.step(piece, state)
        outputs.append(y)
        assert state.size() == model.state_size(state.position)
    torch.testing.assert_close(torch.cat(outputs, 1), model(x), rtol=1e-10, atol=1e-12)
    assert state.position == 9


@pytest.mark.parametrize("case", CASES)
def test_the_future_changes_nothing(case):
    model = built(decoder(**CASES[case])).eval()
    x, other = ids(2, 9), ids(2, 9)
    other[:, 5:] = (other[:, 5:] + 1) % VOCAB
    assert torch.equal(model(x)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(x)[:, 5:], model(other)[:, 5:])


def test_padding_anywhere_changes_nothing():
    model = built(decoder(mixer=FULL(), embed={"registers": 1}))
    x = ids(2, 6)
    valid = torch.tensor([[0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1]], dtype=torch.bool)
    for row in range(2):
        alone = model(x[row][valid[row]][None])[0]
        torch.testing.assert_close(model(x, valid=valid)[row][valid[row]], alone)


def test_rows_of_a_state_can_be_chosen():
    model = built(decoder(mixer=FULL())).eval()
    x = ids(3, 6)
    _, state = model.step(x[:, :4], model.start(3))
    rows = torch.tensor([2, 0])
    y, _ = model.step(x[rows, 4:], state.select(rows))
    torch.testing.assert_close(y, model(x)[rows, 4:])


def test_context_is_read_and_chosen_with_the_rows():
    model = built(decoder(order="scf", mixer=FULL(), cross=FULL())).eval()
    x, context = ids(3, 6), normal(3, 4, DIM)
    valid = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
    whole = model(x, context=context, context_valid=valid)
    for row in range(3):
        alone = model(x[row : row + 1], context=context[row : row + 1, valid[row]])
        torch.testing.assert_close(whole[row : row + 1], alone)
    y, state = model.step(x[:, :4], model.start(3, context=context, context_valid=valid))
    torch.testing.assert_close(y, whole[:, :4])
    rows = torch.tensor([2, 0])
    y, _ = model.step(x[rows, 4:], state.select(rows))
    torch.testing.assert_close(y, whole[rows, 4:])


def test_continuous_inputs_step():
    model = built(Decoder(embedding=Embedding(channels=2), stack=decoder().stack)).eval()
    x = normal(2, 5, 2)
    first, state = model.step(x[:, :3], model.start(2))
    second, _ = model.step(x[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), model(x))


def test_steps_stop_at_the_last_learned_position():
    model = built(decoder(embed={"positions": "learned"}, frame={"length": 4}))
    _, state = model.step(ids(1, 4), model.start(1))
    with pytest.raises(WeftError, match="has 5 tokens, but there are learned positions for 4"):
        model.step(ids(1, 1), state)


def test_refuses_a_context_that_no_one_reads():
    with pytest.raises(WeftError, match="no 'c' sublayers, so the context is unused"):
        built(decoder())(ids(1, 3), context=normal(1, 3, DIM))
    with pytest.raises(WeftError, match="which read a context; give one"):
        built(decoder(order="sc", cross=FULL())).start(1)

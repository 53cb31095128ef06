"""Orders of sublayers: letters, layers, and what each letter computes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_parts import DIM, RunningMean, built, decoder, ids, normal, stack

from weft.errors import Unsupported, WeftError
from weft.mixers import MIXERS, Frame
from weft.models import Stack
from weft.models.stack.order import MIXING, check_order, count, sandwich, split

FULL = MIXERS["full"]


@pytest.mark.parametrize(
    ("order", "layers"),
    [
        ("s", ["s"]),
        ("sf", ["sf"]),
        ("sfsfsf", ["sf", "sf", "sf"]),
        ("scfscf", ["scf", "scf"]),
        ("fssffssf", ["fssf", "fssf"]),
        ("ss", ["s", "s"]),
        ("fs", ["fs"]),
        (sandwich(3, 1), ["s", "sf", "sff"]),
        ("ffsf", ["ffsf"]),
    ],
)
def test_layers(order, layers):
    assert list(split(order)) == layers


def test_an_order_has_an_end():
    """Checked before a text of that length is made."""
    frame = Frame(dim=8, heads=2)
    for make in (lambda n: Stack(frame=frame, layers=n), lambda n: sandwich(n, 1)):
        with pytest.raises(WeftError, match="up to 10,000 sublayers; got 4,294,967,296"):
            make(2**31)
    with pytest.raises(WeftError, match="up to 10,000 sublayers; got 10,001"):
        check_order("s" * 10_001)
    assert len(Stack(frame=frame, layers=5_000).order) == 10_000


@given(st.text("scfpw", max_size=12).filter(lambda order: count(order, MIXING)))
def test_layers_make_up_the_order(order):
    layers = split(order)
    assert "".join(layers) == order
    assert all(count(layer, MIXING) for layer in layers)


def test_side_by_side_is_the_sum_of_both():
    module = built(stack(order="pf", mixer=FULL()), causal=True).eval()
    x, context = normal(2, 5, DIM), normal(2, 7, DIM, seed=1)
    valid = torch.arange(7)[None] < torch.tensor([[7], [4]])
    sub, feeding = module.sublayers
    z = sub.norm(x)
    y = x + sub.body.mixer(z) + sub.body.cross(z, context=context, context_valid=valid)
    y = module.norm(y + feeding.body(feeding.norm(y)))
    got = module(x, context=context, context_valid=valid)
    torch.testing.assert_close(got, y, rtol=1e-12, atol=1e-12)
    alone = x + sub.body.mixer(z)
    assert (got - module.norm(alone + feeding.body(feeding.norm(alone)))).abs().max() > 1e-3


def test_side_by_side_decodes():
    model = built(decoder(order="pfpf", mixer=FULL())).eval()
    x, context = ids(2, 9), normal(2, 7, DIM)
    whole, state = model(x, context=context), model.start(2, context=context)
    parts = []
    for part in x.split((2, 1, 6), dim=1):
        y, state = model.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
    assert state.size() == model.state_size(9) > 0
    with pytest.raises(WeftError, match="give one"):
        model(x)


def test_a_feed_forward_may_remember():
    """One whose body has start and step: here a running sum of what it has read."""
    from dataclasses import dataclass

    from weft.feedforward import Dense, FeedForward
    from weft.mixers import State

    @dataclass
    class Sum(State):
        total: torch.Tensor = None

    class Summing(FeedForward):
        def forward(self, x, *, valid=None):
            return x.cumsum(1)

        def start(self, batch=1):
            return Sum(total=torch.zeros(batch, DIM, dtype=torch.float64))

        def step(self, x, state):
            totals = state.total[:, None] + x.cumsum(1)
            return totals, Sum(position=state.position + x.shape[1], total=totals[:, -1])

        def state_size(self, tokens):
            return DIM

    @dataclass(frozen=True, kw_only=True)
    class Remembering(Dense):
        def build(self, dim, dropout=0.0, bias=True):
            return Summing()

    model = built(decoder(order="sf", feedforward=Remembering())).eval()
    x = ids(2, 8)
    first, state = model.step(x[:, :3], model.start(2))
    rest, state = model.step(x[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), model(x))
    assert state.size() == model.state_size(8) == 2 * DIM
    with pytest.raises(Unsupported, match="keeps no state"):
        decoder(order="w", mixer=FULL(), feedforward=Remembering()).build()


def test_encoders_refuse_every_letter_that_reads_a_context():
    from model_parts import encoder

    for order in ("sc", "p"):
        with pytest.raises(WeftError, match="no 'c' or 'p' sublayers"):
            encoder(order=order, mixer=RunningMean())

"""The recurrence beside a feed-forward, against a loop over its equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import write
from weft.errors import Unsupported, WeftError
from weft.feedforward import FEEDFORWARDS, Dense, Sparse, WithSRU
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Decoder, Stack

DIM, UNITS = 6, 3


def made(dtype=torch.float64, inner=None, **settings):
    torch.manual_seed(0)
    module = WithSRU(inner=inner or Dense(activation="relu"), units=UNITS, **settings).build(DIM)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return module.to(dtype).eval()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def plain(module, x):
    """(n, c): token by token and channel by channel, in Python numbers."""
    part, rows, c = module.recurrence, [], [0.0] * UNITS
    for token in x:
        centred = token - token.mean()
        normed = centred / (centred.square().mean() + 1e-5).sqrt() * part.norm.weight
        z = part.to_narrow.weight @ (normed + part.norm.bias) + part.to_narrow.bias
        gates = (part.to_gates.weight @ z + part.to_gates.bias).tolist()
        u = []
        for a in range(UNITS):
            r, f, new = gates[a], gates[UNITS + a], gates[2 * UNITS + a]
            r, f = 1 / (1 + math.exp(-r)), 1 / (1 + math.exp(-f))
            c[a] = f * c[a] + (1 - f) * new
            u.append(r * c[a] + (1 - r) * math.sqrt(3) * z[a].item())
        u = torch.tensor(u, dtype=torch.float64)
        hidden = torch.relu(module.inner.to_hidden(token))
        rows.append(module.inner.to_out(hidden) + part.to_out(u))
    return torch.stack(rows)


def test_is_its_equation():
    module, x = made(), tokens(2, 9, DIM)
    expected = torch.stack([plain(module, row) for row in x])
    torch.testing.assert_close(module(x).detach(), expected)
    with torch.no_grad():  # gates in another order
        module.recurrence.to_gates.weight.copy_(module.recurrence.to_gates.weight.roll(UNITS, 0))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(module(x).detach(), expected)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=9).filter(any))
def test_padding_anywhere_changes_nothing(real):
    module, x, valid = made(), tokens(1, len(real), DIM), torch.tensor([real])
    padded = module(x, valid=valid)[valid]
    torch.testing.assert_close(padded, module(x[valid][None])[0])


def test_padding_that_is_not_named_does_change_it():
    module, x = made(), tokens(1, 5, DIM)
    valid = torch.tensor([[True, False, True, True, True]])
    assert not torch.allclose(module(x)[valid], module(x[valid][None])[0])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_any_split_into_steps_is_the_whole(pieces):
    module, x = made(), tokens(2, sum(pieces), DIM)
    state, parts = module.start(2), []
    for piece in x.split(pieces, dim=1):
        y, state = module.step(piece, state)
        parts.append(y)
        assert state.size() == module.state_size(state.position) == UNITS
    torch.testing.assert_close(torch.cat(parts, dim=1), module(x))
    assert state.position == sum(pieces)


def decoder(**settings):
    feedforward = WithSRU(inner=Sparse(block=4), units=UNITS)
    frame = Frame(dim=12, heads=3, projection="multiplicative_conv(modules=4)")
    stack = Stack(frame=frame, order="sfsf", mixer="full", feedforward=feedforward, **settings)
    return Decoder(embedding=Embedding(vocab=11), stack=stack)


def decoder_gap(model):
    """How far decoding in pieces is from the whole."""
    ids = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(2))
    state, parts = model.start(2), []
    for piece in ids.split([5, 1, 1, 5], dim=1):
        y, state = model.step(piece, state)
        parts.append(y)
    assert state.size() == model.state_size(12)
    return (torch.cat(parts, dim=1) - model(ids)).abs().max().item()


@pytest.mark.parametrize("recompute", ["nothing", "reversible"])
@torch.no_grad()
def test_a_stack_decodes_with_it(recompute):
    torch.manual_seed(0)
    model = decoder(recompute=recompute).build().double().eval()
    assert decoder_gap(model) < 1e-10
    for sub in model.stack.sublayers:  # a twin whose recurrence begins anew at each step
        if hasattr(sub.body, "recurrence"):
            start, step = sub.body.start, sub.body.step
            sub.body.step = lambda x, state, run=step, new=start: run(x, new(len(x)))
    with pytest.raises(AssertionError):
        assert decoder_gap(model) < 1e-10


def test_half_precision_keeps_a_wide_memory():
    module, x = made(torch.bfloat16), tokens(1, 40, DIM).bfloat16()
    y, state = module.step(x, module.start(1))
    assert y.dtype == torch.bfloat16
    assert state.c.dtype == torch.float32


def test_permuted_tokens_are_refused():
    torch.manual_seed(0)
    frame = Frame(dim=12, heads=3)
    module = Stack(frame=frame, order="sf", mixer="full", feedforward=WithSRU()).build()
    x, places = torch.randn(1, 4, 12), torch.arange(4)[None]
    with pytest.raises(Unsupported, match="without memory"):
        module(x, seen=torch.ones(1, 4, 4, dtype=torch.bool), places=places)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WithSRU(units=0), "units"),
        (lambda: WithSRU(inner=3), "inner"),
        (lambda: WithSRU(inner=WithSRU()), "one recurrence"),
    ],
    ids=["units", "inner", "nested"],
)
def test_refuses_what_cannot_be(make, said):
    with pytest.raises(WeftError, match=said):
        make()


def test_three_forms_of_one_config():
    config = FEEDFORWARDS.parse("with_sru(inner=sparse(block=16), units=8)")
    assert config == WithSRU(inner=Sparse(block=16), units=8)
    assert FEEDFORWARDS.read(write(config)) == config
    assert FEEDFORWARDS.parse(str(config)) == config

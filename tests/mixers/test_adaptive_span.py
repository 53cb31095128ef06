"""Adaptive span: the limits of its mask, what its spans learn, and its penalty."""

import copy

import pytest
import torch
from torch import nn

from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.mixers import AdaptiveSpan, Frame, FullAttention
from weft.mixers.base import penalties
from weft.models import Stack


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 2, "causal": True, **(frame or {})})
    return AdaptiveSpan(**settings).build(frame).double().eval()


def gaussian(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def under(mixer, x, mask):
    q, k, v = mixer.heads(x)
    return mixer.project.out(dense_attention(q, k, v, mask=mask)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_a_span_as_long_as_the_sequence_is_full_attention(causal):
    mixer, x = build({"causal": causal}, span=99, ramp=4, start=1.0), gaussian(2, 100, 24)
    mask = torch.ones(100, 100, dtype=torch.bool)
    expected = under(mixer, x, mask.tril() if causal else mask)
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_a_ramp_of_one_is_a_hard_window(causal):
    mixer, x = build({"causal": causal}, span=20, ramp=1, start=0.5), gaussian(2, 100, 24)
    distance = torch.arange(100)[:, None] - torch.arange(100)
    mask = distance.abs() <= 10
    expected = under(mixer, x, mask & (distance >= 0) if causal else mask)
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)
    wider = build({"causal": causal}, span=20, ramp=1, start=0.55)
    assert not torch.allclose(wider(x), expected, atol=1e-4)


def test_heads_have_their_own_spans_and_the_window_follows_the_longest():
    mixer, x = build(span=128, ramp=4), gaussian(1, 90, 24)
    assert str(mixer.reached()) == "causal & sliding(window=32)"
    with torch.no_grad():
        mixer.positions.share.copy_(torch.tensor([0.125, 0.4375]))
    assert str(mixer.reached()) == "causal & sliding(window=64)"
    far = x.clone()
    far[:, 0] += 5
    q = [mixer.attention(*mixer.heads(y), None, False) for y in (x, far)]
    moved = (q[0] - q[1]).abs().amax((0, 3)) > 1e-12  # (h, n)
    assert [int(row.nonzero().max()) for row in moved] == [16 + 3, 56 + 3]


def test_a_span_grows_where_far_keys_help_and_the_penalty_shrinks_it():
    mixer = build(span=64, ramp=8, start=0.25, penalty=1e-3)
    x = gaussian(1, 64, 24)
    wanted = under(mixer, x, torch.ones(64, 64, dtype=torch.bool).tril()).detach()
    loss = (mixer(x) - wanted).square().sum()
    (pull,) = torch.autograd.grad(loss, mixer.positions.share)
    assert (pull < 0).all()
    (push,) = torch.autograd.grad(mixer.penalty(), mixer.positions.share)
    torch.testing.assert_close(push, torch.full((2,), 1e-3 * 64 / 2, dtype=torch.float64))
    assert float(mixer.penalty().detach()) == pytest.approx(1e-3 * 16)


def test_advance_keeps_spans_in_range():
    mixer = build(span=64)
    with torch.no_grad():
        mixer.positions.share.copy_(torch.tensor([-0.5, 1.5]))
    before = mixer(gaussian(1, 40, 24))
    mixer.advance(1)
    assert mixer.positions.share.tolist() == [0.0, 1.0]
    assert torch.equal(mixer(gaussian(1, 40, 24)), before)


def test_penalties_of_a_model_are_summed():
    frame = Frame(dim=24, heads=2)
    stack = Stack(frame=frame, order="sfs", mixer=AdaptiveSpan(start=0.5, span=100, penalty=0.01))
    model = stack.build()
    assert float(penalties(model).detach()) == pytest.approx(2 * 0.01 * 50)
    assert penalties(Stack(frame=frame, order="sf", mixer=FullAttention()).build()) is None
    assert penalties(nn.Linear(2, 2)) is None


def test_the_reach_follows_the_parameter_however_it_changes():
    mixer = build(span=640, ramp=4)
    other = copy.deepcopy(mixer)
    with torch.no_grad():
        other.positions.share.fill_(0.5)
    assert other.positions.reach(32) == 352
    mixer.load_state_dict(other.state_dict())
    assert mixer.positions.reach(32) == 352
    mixer.positions.share.data.fill_(0.25)
    assert mixer.positions.reach(32) == 192


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="distances within one sequence"):
        build({"causal": False})(gaussian(1, 4, 24), context=gaussian(1, 4, 24))
    for settings in ({"span": 0}, {"ramp": 0}, {"start": 2.0}, {"penalty": -1.0}):
        with pytest.raises(WeftError, match=next(iter(settings))):
            AdaptiveSpan(**settings)


def test_a_share_above_one_is_one_for_the_reference_too():
    """Training clamps shares after an update; a file or a user may hold others."""
    mixer, x = build(span=6, ramp=2), gaussian(1, 23, 24)
    for reading in (mixer, mixer.reference):
        with torch.no_grad():
            mixer.positions.share.fill_(1.0)
        whole = reading(x)
        with torch.no_grad():
            mixer.positions.share.fill_(1.7)
        torch.testing.assert_close(reading(x), whole)

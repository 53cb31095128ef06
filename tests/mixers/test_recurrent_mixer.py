"""What the recurrent mixers share: two directions, padding, memory, and the scans below them."""

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from mixers.fixed_patterns import DIM, HEADS, build, close, decoded, tokens
from weft.errors import Unsupported
from weft.kernels.recurrence.scan import elementwise_scan, linear_scan, scan
from weft.layers.positions import Rope
from weft.mixers import BRC, GRU, LSTM, SRU, Frame

ALL = pytest.mark.parametrize(
    "config", [LSTM(), GRU(), SRU(), SRU(peephole=False), BRC(), BRC(neuromodulated=True)], ids=str
)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 37, 64])
def test_a_linear_scan_by_a_loop(n):
    a, b = torch.rand(2, n, 3).double(), torch.randn(2, n, 3).double()
    h = start = torch.randn(2, 3).double()
    expected = []
    for t in range(n):
        h = a[:, t] * h + b[:, t]
        expected.append(h)
    torch.testing.assert_close(linear_scan(a, b, start), torch.stack(expected, 1), **close)
    found = scan(lambda now, h, _: now[0] * h + now[1], (a, b), start)
    torch.testing.assert_close(found, torch.stack(expected, 1), **close)


def test_a_linear_scan_has_the_gradient_of_the_loop():
    given = [
        torch.rand(1, 9, 2).double(),
        torch.randn(1, 9, 2).double(),
        torch.randn(1, 2).double(),
    ]
    for x in given:
        x.requires_grad_()
    assert torch.autograd.gradcheck(linear_scan, given)


def squash(now, h, weights):
    return torch.tanh(now[0] + torch.sigmoid(now[1]) * weights[0] * h)


@pytest.mark.parametrize("n", [1, 2, 11])
def test_an_elementwise_scan_has_the_values_and_gradients_of_the_loop(n):
    """Backwards it takes one call of the step and a linear scan; the loop takes n of both."""
    given = [
        torch.randn(shape).double().requires_grad_()
        for shape in ((2, n, 3), (2, n, 3), (2, 3), (3,))
    ]

    def run(kind):
        y = kind(squash, tuple(given[:2]), given[2], (given[3],))
        return y, torch.autograd.grad((y * torch.arange(n)[:, None] + y.square()).sum(), given)

    (y, ours), (expected, theirs) = run(elementwise_scan), run(scan)
    torch.testing.assert_close(y, expected, **close)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **close)
    assert torch.autograd.gradcheck(lambda *x: elementwise_scan(squash, x[:2], x[2], x[3:]), given)


def test_the_check_of_gradients_notices_channels_that_meet():
    """A step that mixes channels has no diagonal Jacobian: the twin must fail."""
    given = [torch.randn(shape).double().requires_grad_() for shape in ((1, 5, 3), (1, 3), (3, 3))]

    def mixed(now, h, weights):
        return torch.tanh(now[0] + h @ weights[0])

    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(lambda *x: elementwise_scan(mixed, x[:1], x[1], x[2:]), given)


@ALL
def test_directions_do_not_meet_before_the_projection(config):
    """With the half of the right-hand cell silenced, both ways is causal."""
    mixer, one, x = build(config), build(config, causal=True), tokens(12)
    one.cells[0].load_state_dict(mixer.cells[0].state_dict())
    with torch.no_grad():
        mixer.to_out.weight[:, DIM:] = 0.0
        one.to_out.weight.copy_(mixer.to_out.weight[:, :DIM])
        one.to_out.bias.copy_(mixer.to_out.bias)
    torch.testing.assert_close(mixer(x), one(x), **close)


@ALL
def test_from_the_right_is_from_the_left_on_a_turned_sequence(config):
    mixer, x = build(config), tokens(15)
    mixer.cells[1].load_state_dict(mixer.cells[0].state_dict())
    with torch.no_grad():
        mixer.to_out.weight[:, DIM:] = mixer.to_out.weight[:, :DIM]
    torch.testing.assert_close(mixer(x.flip(1)).flip(1), mixer(x), **close)
    valid = torch.arange(15) < torch.tensor([[15], [6]])
    y = mixer(x, valid=valid)
    alone = mixer(x[1:, :6].flip(1)).flip(1)
    torch.testing.assert_close(y[1:, :6], alone, **close)


@ALL
def test_the_state_does_not_grow(config):
    mixer, x = build(config, causal=True), tokens(40)
    torch.testing.assert_close(decoded(mixer, x, [1, 7, 1, 31]), mixer(x), **close)
    numbers = 2 if isinstance(config, LSTM) else 1
    assert mixer.state_size(0) == mixer.state_size(10**6) == numbers * DIM


@ALL
def test_refusals(config):
    with pytest.raises(Unsupported, match="knows the order of tokens by itself"):
        config.build(Frame(dim=DIM, heads=HEADS, positions=Rope()))
    with pytest.raises(Unsupported, match="no keys to group"):
        config.build(Frame(dim=DIM, heads=HEADS, kv_heads=1))

"""The kernels of recurrences, interpreted on a CPU, against loops over the tokens in fp64."""

import pytest
import torch

import weft.kernels.recurrence.scan as scan
import weft.kernels.recurrence.triton as kernel
from weft.mixers import BRC, GRU, LSTM, SRU, Frame

SIZES = pytest.mark.parametrize(("n", "c"), [(1, 3), (16, 5), (21, 20)])
CELLS = pytest.mark.parametrize("config", [SRU(), SRU(peephole=False), BRC()], ids=str)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(kernel, "TILE", (16, 8))
    monkeypatch.setattr(kernel, "CHANNELS", 16)


def walked(step, n, state):
    states = []
    for t in range(n):
        state = step(t, state)
        states.append(state)
    return torch.stack(states, 1)


@SIZES
def test_the_linear_recurrence_both_ways(n, c):
    a, b, start = torch.rand(2, n, c), torch.randn(2, n, c), torch.randn(2, c)
    found = kernel.fused_linear(a, b, start)
    x, y = a.double(), b.double()
    expected = walked(lambda t, h: x[:, t] * h + y[:, t], n, start.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    found = kernel.fused_linear(a, b, torch.zeros_like(start), back=True)
    x = torch.cat((x[:, 1:], torch.zeros(2, 1, c)), 1).flip(1)
    y = y.flip(1)
    expected = walked(lambda t, h: x[:, t] * h + y[:, t], n, torch.zeros(2, c).double())
    torch.testing.assert_close(found.double(), expected.flip(1), rtol=1e-5, atol=1e-5)
    if n > 1:  # the ways are told apart
        assert not torch.allclose(found.double(), expected, atol=1e-2)


@SIZES
def test_the_cells_by_loops(n, c):
    wide, start, weight = torch.randn(2, n, 3 * c), torch.randn(2, c), torch.randn(2 * c)
    first, second, third = wide.double().chunk(3, -1)
    w, v = weight.double().chunk(2)

    def sru(t, h):
        f = torch.sigmoid(second[:, t] + w * h)
        return f * h + (1 - f) * first[:, t]

    def brc(t, h):
        a = 1 + torch.tanh(first[:, t] + w * h)
        gate = torch.sigmoid(second[:, t] + v * h)
        return gate * h + (1 - gate) * torch.tanh(third[:, t] + a * h)

    parts = wide.chunk(3, -1)
    found = kernel.fused_sru(parts[:2], start, (weight[:c],))
    expected = walked(sru, n, start.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(kernel.fused_sru(parts[1::-1], start, (weight[:c],)), found, atol=0.1)
    gates, new = wide.split((2 * c, c), -1)
    found = kernel.fused_brc((gates, new), start, (weight,))
    expected = walked(brc, n, start.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(kernel.fused_brc((gates, new), start, (-weight,)), found, atol=0.1)


@CELLS
def test_mixers_by_the_kernels_are_their_reference(monkeypatch, config):
    mixer = config.build(Frame(dim=12, heads=2))
    x = torch.randn(2, 21, 12, requires_grad=True)
    inputs = (x, *mixer.parameters())
    expected = mixer.reference(x)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    monkeypatch.setattr(scan, "can_fuse", lambda *tensors, **rules: True)
    monkeypatch.setattr(scan, "scan", None)  # nothing goes token by token
    out = mixer(x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(torch.autograd.grad(out, inputs, upstream), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", [LSTM(), GRU()], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_torch_runs_what_the_equation_says_without_training(config, bias):
    mixer = config.build(Frame(dim=8, heads=2, bias=bias)).double().eval()
    x = torch.randn(2, 9, 8).double().requires_grad_()
    torch.testing.assert_close(mixer(x), mixer.reference(x))
    mixer(x).sum().backward()
    assert x.grad.isfinite().all()


def test_contiguous_weights_are_the_weights():
    weights = [torch.randn(6, 2), torch.randn(6, 2), torch.randn(6)]
    found = kernel._contiguous(weights, torch.float64)
    for one, other in zip(found, weights, strict=True):
        assert torch.equal(one, other.double())
    first, second, third = (part.data_ptr() for part in found)
    assert (second - first, third - second) == (96, 96)

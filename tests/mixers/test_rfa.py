"""Random feature attention: its recurrence token by token, its kernel in the limit, its gates."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from padded_rows import assert_like_reference

import weft.kernels.linear_attention.triton as fused
import weft.mixers.rfa as rfa
from weft.errors import Unsupported, WeftError
from weft.kernels.linear_attention.reference import linear_attention
from weft.layers.positions import Alibi
from weft.mixers import RFA, Frame


def build(frame=None, **settings):
    torch.manual_seed(0)
    return RFA(**settings).build(Frame(**{"dim": 32, "heads": 2, **(frame or {})})).double()


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def recurrence(mixer, x, gates=None):
    """Section 3.1 and 3.2 as a loop over tokens and heads of one row (1, n, c)."""
    q, k, v = mixer.heads(x)
    weight, rows = mixer.directions.weight * mixer.scale, []
    for head in range(q.shape[1]):
        s = torch.zeros(2 * weight.shape[1], v.shape[-1], dtype=x.dtype)
        z, outs = torch.zeros(2 * weight.shape[1], dtype=x.dtype), []
        for t in range(x.shape[1]):
            phi = []
            for y in (q[0, head, t], k[0, head, t]):
                angle = weight[head] @ (y / y.norm())
                phi.append(torch.cat((angle.sin(), angle.cos())) / weight.shape[1] ** 0.5)
            kept, new = (1.0, 1.0) if gates is None else (gates[head, t], 1 - gates[head, t])
            s = kept * s + new * torch.outer(phi[1], v[0, head, t])
            z = kept * z + new * phi[1]
            outs.append(phi[0] @ s / max(float(phi[0] @ z), mixer.config.floor))
        rows.append(torch.stack(outs))
    return mixer.project.out(torch.stack(rows)[None])


@pytest.mark.parametrize("gated", [False, True])
def test_equals_the_recurrence_of_the_paper(gated):
    mixer, x = build({"causal": True}, features=16, gated=gated), gaussian(1, 80, 32)
    with torch.no_grad():
        mixer.scale.mul_(torch.linspace(0.5, 1.5, 16, dtype=torch.float64))
        gates = torch.sigmoid(mixer.gate(x))[0].T if gated else None
        torch.testing.assert_close(mixer(x), recurrence(mixer, x, gates), rtol=0, atol=1e-10)


@pytest.mark.parametrize("gated", [False, True])
def test_the_fused_kernels_equal_the_equation(monkeypatch, gated):
    """Interpreted: grouped keys, padding; gradients of gates and σ too."""
    monkeypatch.setattr(rfa, "can_fuse", lambda *given, **rules: True)
    monkeypatch.setattr(fused, "RANDOM", fused.RANDOM._replace(chunk=16, tile=16))
    mixer = build({"causal": True, "kv_heads": 1}, features=9, gated=gated).float()
    assert_like_reference(mixer)


def error_at(features, draws=6):
    """Of the output against the exact Gaussian kernel, relative."""
    mixer = build(features=features)
    q, k, v = gaussian(3, 1, 2, 64, 16)
    near = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).exp()
    truth, errors = near / near.sum(-1, keepdim=True) @ v, []
    for draw in range(draws):
        mixer.redraw(draw)
        phi_q, phi_k = mixer.features(q), mixer.features(k)
        out = linear_attention(phi_q, phi_k, v, eps=0.0, floor=1e-6)
        errors.append((out - truth).norm() / truth.norm())
    return float(torch.stack(errors).mean())


def test_the_error_falls_with_the_root_of_the_features():
    with torch.no_grad():
        errors = [error_at(features) for features in (64, 256, 1024)]
    for coarse, fine in pairwise(errors):
        assert 1.5 < coarse / fine < 2.7
    assert errors[-1] < 0.25


def test_a_constant_gate_is_exponential_decay():
    mixer, x = build({"causal": True}, gated=True, features=16), gaussian(2, 70, 32)
    with torch.no_grad():
        mixer.gate.weight.zero_()
        mixer.gate.bias.fill_(1.0)
        ours = mixer(x)
    kept = torch.sigmoid(torch.tensor(1.0, dtype=torch.float64))
    q, k, v = mixer.heads(x)
    distance = torch.arange(70)[:, None] - torch.arange(70)
    weights = (mixer.features(q) @ mixer.features(k).mT) * kept ** distance.clamp(min=0)
    weights = (weights * (distance >= 0)) * (1 - kept)
    bottom = weights.sum(-1, keepdim=True).clamp(min=mixer.config.floor)
    expected = mixer.project.out(weights / bottom @ v)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    open_gate = build({"causal": True}, features=16)
    open_gate.load_state_dict(mixer.state_dict(), strict=False)
    assert not torch.allclose(open_gate(x), ours)  # the check would see a gate that is left out


def test_a_vanishing_denominator_is_held_at_the_floor():
    q = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]], dtype=torch.float64)
    v = torch.tensor([[[[3.0], [1.0]]]], dtype=torch.float64)
    assert linear_attention(q, k, v, eps=0.0, floor=0.5).item() == pytest.approx(4.0)
    assert not linear_attention(q, k, v, eps=0.0).isfinite().all()


def test_gates_are_causal_and_redraws_are_asked_for():
    with pytest.raises(Unsupported, match="causal"):
        build(gated=True)
    mixer, x = build(redraw_every=3), gaussian(1, 9, 32)
    first = mixer(x)
    mixer.advance(2)
    assert torch.equal(mixer(x), first)
    mixer.advance(3)
    assert not torch.allclose(mixer(x), first)


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="no matrix of scores to bias"):
        build({"positions": Alibi()})
    for settings in ({"features": 0}, {"floor": 0.0}, {"redraw_every": -1}):
        with pytest.raises(WeftError, match=next(iter(settings))):
            RFA(**settings)

"""Performer against performer_pytorch, against dense attention in the limit, and its redraws."""

import copy
import sys
import types
import warnings
from itertools import pairwise

import pytest
import torch
from padded_rows import assert_like_reference

import weft.kernels.linear_attention.triton as fused
import weft.mixers.performer as performer
from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.layers.positions import Alibi
from weft.layers.random_features import RandomDirections
from weft.mixers import Frame, Performer


@pytest.fixture(scope="module")
def published():
    """performer_pytorch, which asks for a module that Python 3.12 no longer has."""
    stand_in = types.ModuleType("distutils.version")
    stand_in.LooseVersion = lambda text: tuple(int(p) for p in text.split("+")[0].split("."))
    sys.modules.setdefault("distutils.version", stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from performer_pytorch import performer_pytorch
    return performer_pytorch


def build(frame=None, **settings):
    torch.manual_seed(0)
    return Performer(**settings).build(Frame(**{"dim": 32, "heads": 2, **(frame or {})})).double()


def gaussian(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_equals_performer_pytorch_without_its_epsilon(published, kernel, causal):
    mixer = build({"causal": causal}, kernel=kernel, features=24)
    omega = mixer.directions.weight[:1].expand(2, -1, -1)
    mixer.directions.weight.copy_(omega)
    q, k, v = gaussian(3, 2, 2, 70, 16)
    if kernel == "relu":
        phi_q, phi_k = (published.generalized_kernel(x, projection_matrix=omega[0]) for x in (q, k))
    else:
        phi_q, phi_k = (
            published.softmax_kernel(x, projection_matrix=omega[0], is_query=asks, eps=0.0)
            for x, asks in ((q, True), (k, False))
        )
    if causal:
        weights = (phi_q @ phi_k.mT).tril()  # its causal code divides by a biased sum
        expected = weights / weights.sum(-1, keepdim=True) @ v
    else:
        expected = published.linear_attention(phi_q, phi_k, v)
    ours = mixer.attention(q, k, v, None, crossing=False)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_the_fused_kernels_equal_the_equation(monkeypatch, kernel):
    """Interpreted: grouped keys, padding, features that fill no whole tile; gradients too."""
    monkeypatch.setattr(performer, "can_fuse", lambda *given, **rules: True)
    monkeypatch.setattr(fused, "RANDOM", fused.RANDOM._replace(chunk=16, tile=16))
    mixer = build({"causal": True, "kv_heads": 1}, kernel=kernel, features=19).float()
    assert_like_reference(mixer)


def error_at(features, scale=0.5, draws=6):
    """Relative error against dense attention, averaged over draws."""
    q, k, v = gaussian(3, 1, 2, 64, 16, scale=scale)
    truth, errors = dense_attention(q, k, v)[0], []
    mixer = build(features=features)
    for draw in range(draws):
        mixer.redraw(draw)
        errors.append((mixer.attention(q, k, v, None, False) - truth).norm() / truth.norm())
    return float(torch.stack(errors).mean())


def test_the_error_falls_with_the_root_of_the_features():
    errors = [error_at(features) for features in (64, 256, 1024)]
    assert errors[0] < 0.4
    for coarse, fine in pairwise(errors):
        assert 1.5 < coarse / fine < 2.7
    # A feature map that lacks the factor exp(−‖x‖²/2) estimates another function.
    assert errors[2] < 0.1


def test_orthogonal_directions_are_orthogonal_gaussian_and_better():
    weight = RandomDirections(2, 40, 16, seed=0, layer=0, orthogonal=True).weight.double()
    block = weight[0, :16] / weight[0, :16].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(block @ block.T, torch.eye(16).double(), rtol=0, atol=1e-6)
    many = RandomDirections(1, 4096, 16, seed=1, layer=0, orthogonal=True).weight
    assert many.std() == pytest.approx(1.0, abs=0.02)
    plain = RandomDirections(2, 16, 16, seed=0, layer=0, orthogonal=False).weight[0]
    assert (plain @ plain.T).tril(-1).abs().max() > 1


def test_large_inputs_and_a_growing_exponent_stay_exact():
    mixer = build({"causal": True}, features=24)
    x = gaussian(1, 60, 32) * torch.linspace(0.1, 6, 60).double().flip(0)[:, None]
    torch.testing.assert_close(mixer(x), mixer.reference(x), rtol=0, atol=1e-9)
    single = mixer.float()
    assert single(x.float() * 30).isfinite().all()


def test_the_future_would_leak_through_a_shift_by_the_largest_key():
    """The twin that shifts by the largest exponent of all keys rounds differently."""
    mixer = build({"causal": True}, features=24).float()
    q, k, v = gaussian(3, 1, 2, 70, 16).float()
    louder = k.clone()
    louder[:, :, -1] = 2 * mixer.directions.weight[:, 0]  # where φ is largest

    def twin(k):
        a, c = mixer.exponents(q, k, None)
        a, c = a - a.amax(-1, keepdim=True), c - c.amax((-2, -1), keepdim=True)
        weights = (a.exp() @ c.exp().mT).tril()
        return weights / weights.sum(-1, keepdim=True) @ v

    ours = [mixer.attention(q, keys, v, None, False)[:, :, :-1] for keys in (louder, k)]
    assert torch.equal(*ours)
    twins = [twin(keys)[:, :, :-1] for keys in (louder, k)]
    assert not torch.equal(*twins)


def test_redraws_follow_the_step_and_nothing_else():
    mixer, x = build(redraw_every=10, features=8), gaussian(1, 9, 32)
    first = mixer(x)
    mixer.train()
    for step in range(1, 10):
        mixer.advance(step)
        mixer(x)
    assert torch.equal(mixer.eval()(x), first)
    mixer.advance(10)
    second = mixer(x)
    assert not torch.allclose(second, first)
    late = build(redraw_every=10, features=8)
    late.advance(30)
    late.advance(10)
    assert torch.equal(late(x), second)
    late.redraw(0)
    assert torch.equal(late(x), first)
    never = build(redraw_every=0, features=8)
    never.advance(1000)
    assert torch.equal(never(x), first)


def test_layers_and_heads_draw_differently():
    weights = [build({"layer": layer}, features=8).directions.weight for layer in (0, 1)]
    assert not torch.equal(*weights)
    assert not torch.equal(*weights[0])


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="no matrix of scores to bias"):
        build({"positions": Alibi()})
    for settings in ({"features": 0}, {"kernel": "cosine"}, {"redraw_every": -1}):
        with pytest.raises(WeftError, match=next(iter(settings))):
            Performer(**settings)


@pytest.mark.parametrize("every", [0, 2])
def test_directions_change_between_updates_exactly_where_they_are_redrawn(every):
    """What a recorded update asks: `changes` is False where `advance` does nothing."""
    mixer = build(redraw_every=every)
    before = mixer.directions.weight.clone()
    for step in range(1, 5):
        mixer.advance(step)
    assert mixer.changes == (not torch.equal(mixer.directions.weight, before))
    assert mixer.changes == (every > 0)


@pytest.mark.parametrize(("every", "redrawn"), [(0, []), (1, [1, 2, 3, 4]), (3, [3, 6])])
def test_features_are_redrawn_after_every_so_many_updates(every, redrawn):
    mixer = Performer(features=8, redraw_every=every).build(Frame(dim=8, heads=2))
    found = []
    for step in range(1, 5 if every == 1 else 8):
        before = copy.deepcopy(mixer.directions.state_dict())
        mixer.advance(step)
        after = mixer.directions.state_dict()
        if any(not torch.equal(before[name], after[name]) for name in before):
            found.append(step)
    assert found == redrawn

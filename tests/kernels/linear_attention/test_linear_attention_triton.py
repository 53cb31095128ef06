"""The fused feature-map kernels, interpreted on a CPU: values and gradients against fp64 truth."""

import pytest
import torch
import torch.nn.functional as F

import weft.kernels.linear_attention.reference as feature_map
import weft.kernels.linear_attention.triton as fused
from weft.kernels.linear_attention.triton import Random

EPS = 1e-6
ROWS = torch.arange(40) < torch.tensor([[40], [23]])


def set_small(monkeypatch, **settings):
    for name in ("GIVEN", "RANDOM"):
        cut = {"chunk": 16, "tile": 16, **settings}
        small = getattr(fused, name)._replace(**cut)
        monkeypatch.setattr(fused, name, small)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    set_small(monkeypatch)


def made(x, feature):
    """φ in fp64, from its definition."""
    if isinstance(feature, str):
        return F.elu(x) + 1 if feature == "elu" else x
    group = x.shape[1] // feature.directions.shape[0]
    if feature.kind == "trig":
        x = x / x.norm(dim=-1, keepdim=True)
        x = x * feature.unit.double().repeat_interleave(group, 0)[:, None]
    w = feature.directions.double().repeat_interleave(group, 0)
    e = torch.einsum("bhnd,hfd->bhnf", x * feature.scale, w)
    if feature.kind == "exp":
        return (e - (x * feature.scale).square().sum(-1, keepdim=True) / 2).exp()
    if feature.kind == "relu":
        return e.relu() + 1e-3
    return torch.cat((e.sin(), e.cos()), -1) * w.shape[1] ** -0.5


def truth(q, k, v, feature="given", *, weight=None, log_decay=None, eps=EPS, floor=None):
    """The equation, pair by pair, in fp64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = made(k, feature).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (made(q, feature) @ k.mT).tril()
    if weight is not None:
        scores = scores * weight.double().repeat_interleave(group, 1)[:, :, None]
    if log_decay is not None:
        clock = log_decay.double().cumsum(-1).repeat_interleave(group, 1)
        scores = scores * (clock[..., :, None] - clock[..., None, :]).tril().exp()
    bottom = scores.sum(-1, keepdim=True)
    return scores @ v / (bottom + eps if floor is None else bottom.clamp(min=floor))


def inputs(n, f=16, e=16, heads=2, key_heads=2, b=1):
    torch.manual_seed(n + f)
    shapes = ((heads, f), (key_heads, f), (key_heads, e))
    return [torch.randn(b, n, h, d).transpose(1, 2) for h, d in shapes]


def random_features(kind, features, heads, d=16):
    torch.manual_seed(features)
    unit = torch.rand(heads, d) + 0.5 if kind == "trig" else None
    return Random(kind, torch.randn(heads, features, d), 0.7, unit)


def compare(given, out, expected):
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, given, upstream)
    wanted = torch.autograd.grad(expected, given, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize(("n", "programs"), [(1, 1), (15, 4), (64, 1), (64, 4), (64, 1000)])
def test_values_and_gradients_are_those_of_the_equation(monkeypatch, n, programs):
    set_small(monkeypatch, programs=programs)
    given = [x.requires_grad_() for x in inputs(n)]
    out = fused.fused_causal_attention(*given, feature="elu", eps=EPS)
    compare(given, out, truth(*given, "elu"))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("kind", ["given", "exp", "relu", "trig"])
def test_any_number_of_features_of_every_kind(monkeypatch, kind, gated):
    """Tiles that are not whole, grouped keys, weights and decays that learn."""
    set_small(monkeypatch, programs=12)
    given = inputs(40, f=21 if kind == "given" else 16, heads=2, key_heads=1)
    feature, limits = "given", {"eps": 1e-30, "floor": None}
    if kind == "given":
        given[:2] = [x.abs() + 0.1 for x in given[:2]]
    else:
        feature = random_features(kind, 13 if kind == "trig" else 21, heads=1)
    if kind == "trig":
        given.append(feature.unit)
        limits = {"eps": 0.0, "floor": 0.3}  # some denominators are below it
    gates = {}
    if gated:
        gates = {"weight": torch.rand(1, 1, 40) + 0.1, "log_decay": -torch.rand(1, 1, 40) / 2}
        given.extend(gates.values())
    given = [x.requires_grad_() for x in given]
    out = fused.fused_causal_attention(*given[:3], feature=feature, **gates, **limits)
    compare(given, out, truth(*given[:3], feature, **gates, **limits))


def test_wide_heads_take_short_chunks():
    for given in (False, True):
        assert fused._settings(given, 64, 128) is fused.WIDE
        assert fused._settings(given, 128, 16) is fused.WIDE
    assert fused._settings(True, 64, 64) is fused.RANDOM
    assert fused._settings(False, 64, 64) is fused.GIVEN


def test_features_may_be_wider_than_values_and_keys_grouped():
    given = [x.abs().requires_grad_() for x in inputs(20, f=32, e=16, heads=4, key_heads=2)]
    compare(given, fused.fused_causal_attention(*given), truth(*given))


def test_large_exponents_neither_overflow_nor_read_the_future():
    q, k, v = inputs(40)
    k = k * torch.linspace(1, 12, 40)[:, None]
    feature = random_features("exp", 16, heads=2)
    out = fused.fused_causal_attention(q, k, v, feature=feature, eps=1e-30)
    torch.testing.assert_close(out.double(), truth(q, k, v, feature, eps=0.0), rtol=1e-3, atol=1e-3)
    other = k.clone()
    other[:, :, 30:] = 1.4 * feature.directions[:, :1]  # where φ is largest
    moved = fused.fused_causal_attention(q, other, v, feature=feature, eps=1e-30)
    assert torch.equal(moved[:, :, :30], out[:, :, :30])
    assert not torch.equal(moved[:, :, 30:], out[:, :, 30:])


@pytest.mark.parametrize("broken", ["future", "decay", "weight"])
def test_the_comparison_bites(broken):
    q, k, v = (x.abs() + 0.1 for x in inputs(40))
    gates = {"weight": torch.rand(1, 2, 40) + 0.1, "log_decay": -torch.rand(1, 2, 40)}
    out = fused.fused_causal_attention(q, k, v, **gates)
    torch.testing.assert_close(out.double(), truth(q, k, v, **gates), rtol=1e-4, atol=1e-5)
    if broken == "future":
        k = k.roll(-1, 2)
    else:
        gates.pop("log_decay" if broken == "decay" else "weight")
    assert not torch.allclose(out.double(), truth(q, k, v, **gates), rtol=1e-2)


def test_half_precision_stays_near_the_truth():
    given = [x.half().requires_grad_() for x in inputs(70)]  # bfloat16 is not interpreted
    out = fused.fused_causal_attention(*given, feature="elu")
    expected, upstream = truth(*given, "elu"), torch.randn_like(out)
    found = torch.autograd.grad(out, given, upstream)
    wanted = torch.autograd.grad(expected, given, upstream.double())
    for one, other in zip((out, *found), (expected, *wanted), strict=True):
        assert (one.double() - other.double()).norm() < 2e-3 * other.double().norm()


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_linear_attention_takes_the_kernels_where_it_can(monkeypatch, padded):
    """The plain form and the kernels agree on real rows, padding at the end or not."""
    q, k, v = inputs(40, b=2)
    valid = ROWS if padded else None
    settings = {"causal": True, "valid": valid, "feature": "elu"}
    plain = feature_map.linear_attention(q, k, v, **settings)
    called = []
    monkeypatch.setattr(feature_map, "can_fuse", lambda *tensors, **rules: True)
    original = feature_map.fused_causal_attention

    def counted(*args, **kwargs):
        called.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(feature_map, "fused_causal_attention", counted)
    out = feature_map.linear_attention(q, k, v, **settings)
    assert len(called) == 1
    rows = torch.ones(2, 40, dtype=torch.bool) if valid is None else valid
    torch.testing.assert_close(
        out.transpose(1, 2)[rows], plain.transpose(1, 2)[rows], rtol=1e-4, atol=1e-5
    )


def test_what_can_be_fused_is_said():
    q = torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16)
    assert not fused.can_fuse(q, q, q), "there is no GPU here"


def test_stages_fit_into_shared_memory():
    assert fused.stages_that_fit(3, 64, 64, 0, 64) == 3
    assert fused.stages_that_fit(3, 64, 32, 64, 64) == 3
    assert fused.stages_that_fit(3, 128, 64, 128, 128) < 3
    assert fused.stages_that_fit(3, 512, 64, 128, 128) == 1

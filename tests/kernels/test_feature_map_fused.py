"""The fused feature-map kernels, interpreted on a CPU: values and gradients against fp64 truth."""

import pytest
import torch

import weft.kernels.feature_map as feature_map
import weft.kernels.feature_map_fused as fused

EPS = 1e-6


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(fused, "CHUNK", 16)


def truth(q, k, v, elu, eps=EPS):
    """The equation, pair by pair, in fp64."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    if elu:
        q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    scores = (q @ k.mT).tril()
    return scores @ v / (scores.sum(-1, keepdim=True) + eps)


def inputs(n, f=16, e=16, heads=2, key_heads=2):
    torch.manual_seed(n + f)
    shapes = ((heads, f), (key_heads, f), (key_heads, e))
    return [torch.randn(2, n, h, d).abs().add(0.1).transpose(1, 2) for h, d in shapes]


@pytest.mark.parametrize("feature", ["given", "elu"])
@pytest.mark.parametrize("n", [1, 15, 64, 100])
@pytest.mark.parametrize("programs", [1, 12, 1000], ids=["one", "few", "many"])
def test_values_and_gradients_are_those_of_the_equation(monkeypatch, feature, n, programs):
    monkeypatch.setattr(fused, "_PROGRAMS", programs)
    given = inputs(n)
    if feature == "elu":
        given = [x - 0.8 for x in given]
    given = [x.requires_grad_() for x in given]
    out = fused.fused_causal_attention(*given, feature=feature, eps=EPS)
    expected = truth(*given, feature == "elu")
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, given, upstream)
    wanted = torch.autograd.grad(expected, given, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_features_may_be_wider_than_values_and_keys_grouped():
    given = [x.requires_grad_() for x in inputs(50, f=32, e=16, heads=4, key_heads=2)]
    out = fused.fused_causal_attention(*given)
    expected = truth(*given, False)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(out.sum(), given)
    wanted = torch.autograd.grad(expected.sum(), given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_the_comparison_bites():
    q, k, v = inputs(40)
    out = fused.fused_causal_attention(q, k, v)
    leaking = truth(q, k.roll(-1, 2), v, False)
    assert not torch.allclose(out.double(), leaking, rtol=1e-2)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("feature", ["given", "elu"])
def test_linear_attention_takes_the_kernels_where_it_can(monkeypatch, padded, feature):
    """The plain form and the kernels agree on real rows, padding at the end or not."""
    q, k, v = inputs(40)
    valid = torch.arange(40) < torch.tensor([[40], [23]]) if padded else None
    settings = {"causal": True, "valid": valid, "feature": feature}
    plain = feature_map.linear_attention(q, k, v, **settings)
    called = []
    monkeypatch.setattr(feature_map, "can_fuse", lambda *tensors: True)
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

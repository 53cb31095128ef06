"""Sparse projections against loops over their equations, and in their limits."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import write
from weft.errors import Unsupported, WeftError
from weft.layers.projections.dense import PROJECTIONS, DenseProjection
from weft.layers.projections.multiplicative import (
    ModuleConvolution,
    Multiplicative,
    MultiplicativeConv,
    Multiply,
)
from weft.testing.projections import compare_steps


def frame(**settings):
    given = {"dim": 12, "heads": 3, "kv_heads": 3, "head_dim": 4, "bias": True, "causal": True}
    return SimpleNamespace(**{**given, **settings})


def stirred(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.double()


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def plain_multiply(module, x):
    """y[s, m] = Σ_i x_i D[s, i] E[i, m] + b[s, m] of one token, by loops."""
    d, e = module.scale.tolist(), module.weight.tolist()
    y = [
        sum(x[i].item() * d[s][i] * e[i][m] for i in range(len(x)))
        for s in range(len(d))
        for m in range(len(e[0]))
    ]
    y = torch.tensor(y, dtype=torch.float64)
    return y if module.bias is None else y + module.bias.detach()


def plain_convolution(module, z, before):
    """(n, S, M) -> (n, S·M) by loops; `before` zeros stand in front, the rest behind."""
    n, modules, channels = z.shape
    _, _, length, width = module.weight.shape
    rows = []
    for t in range(n):
        for s in range(modules):
            y = module.bias.detach().clone()
            for a in range(length):
                for b in range(width):
                    at, beside = t + a - before, s + b - width // 2
                    if 0 <= at < n and 0 <= beside < modules:
                        y = y + module.weight.detach()[:, :, a, b] @ z[at, beside]
            rows.append(y)
    return torch.cat(rows).view(n, modules * channels)


@pytest.mark.parametrize("count", [1, 30], ids=["few tokens", "many tokens"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_multiply_is_its_equation(count, bias):
    module, x = stirred(Multiply(6, 8, bias, modules=2)), tokens(count, 6)
    expected = torch.stack([plain_multiply(module, token) for token in x])
    torch.testing.assert_close(module(x).detach(), expected)
    with torch.no_grad():
        module.scale.copy_(module.scale.flip(0))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(module(x).detach(), expected)


@settings(deadline=None, max_examples=30)
@given(modules=st.integers(1, 4), wide=st.integers(1, 4), inputs=st.integers(1, 6))
def test_both_forms_agree_in_values_and_gradients(modules, wide, inputs):
    module = stirred(Multiply(inputs, modules * wide, True, modules=modules))
    many = tokens(wide + 1, inputs)
    few = torch.stack([module(token) for token in many])
    torch.testing.assert_close(module(many), few)
    leaves = list(module.parameters())
    for mine, other in zip(
        torch.autograd.grad(module(many).square().sum(), leaves),
        torch.autograd.grad(few.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(12)), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_any_permutation_can_be_expressed(goes_to, modules):
    wide = 12 // modules
    module, x = Multiply(12, 12, False, modules=modules).double(), tokens(12)
    with torch.no_grad():
        module.scale.zero_(), module.weight.zero_()
        for i, place in enumerate(goes_to):
            module.scale[place // wide, i] = 1
            module.weight[i, place % wide] = 1
    expected = torch.empty_like(x)
    expected[list(goes_to)] = x
    assert torch.equal(module(x), expected)


def test_one_module_of_ones_is_a_dense_layer():
    module, x = stirred(Multiply(6, 8, True, modules=1)), tokens(3, 6)
    with torch.no_grad():
        module.scale.fill_(1)
    expected = torch.nn.functional.linear(x, module.weight.T, module.bias)
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("n", [1, 2, 11], ids=["one", "two", "many"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("sizes", [(3, 3), (4, 1), (1, 5)], ids=["3x3", "4x1", "1x5"])
def test_convolved_projections_are_their_equation(n, causal, sizes):
    length, width = sizes
    config = MultiplicativeConv(modules=4, length=length, width=width)
    module, x = stirred(config.build(frame(causal=causal))), tokens(1, n, 12)
    z = torch.stack([plain_multiply(module.shared, token) for token in x[0]]).view(n, 4, 3)
    before = length - 1 if causal else (length - 1) // 2
    found = dict(zip("qkv", module.qkv(x), strict=True))
    for name, part in (("q", module.to_q), ("k", module.to_k), ("v", module.to_v)):
        assert part.weight.shape == (3, 3, length, 1 if name == "v" else width)
        expected = plain_convolution(part, z, before).view(n, 3, 4).transpose(0, 1)
        torch.testing.assert_close(found[name][0].detach(), expected)
    torch.testing.assert_close(module.k(x), found["k"])
    torch.testing.assert_close(module.v(x), found["v"])


def test_pieces_convolve_like_the_whole():
    part, z = stirred(ModuleConvolution(3, 3, 3, True)), tokens(2, 22, 4, 3)
    whole = part(z)
    one_by_one = torch.cat([part(z[:, t : t + 3]) for t in range(20)], dim=1)
    torch.testing.assert_close(whole, one_by_one)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 4))
def test_any_split_into_steps_is_the_whole(pieces, length):
    module = stirred(MultiplicativeConv(modules=4, length=length).build(frame()))
    assert module.memory_size == (length - 1) * 12
    compare_steps(module, tokens(2, sum(pieces), 12), pieces, f"length={length}")


def test_a_causal_convolution_does_not_read_ahead():
    x = tokens(1, 12, 12)
    later = x.clone()
    later[:, 7:] = tokens(1, 5, 12)
    causal = stirred(MultiplicativeConv(modules=4).build(frame()))
    both = stirred(MultiplicativeConv(modules=4).build(frame(causal=False)))
    for module, same in ((causal, True), (both, False)):
        pairs = zip(module.qkv(x), module.qkv(later), strict=True)
        assert all(torch.equal(a[:, :, :7], b[:, :, :7]) for a, b in pairs) == same


def test_parameters_are_as_few_as_said():
    count = {
        name: sum(p.numel() for p in PROJECTIONS.parse(spec).build(FRAME).parameters())
        for name, spec in (("mult", "multiplicative"), ("conv", "multiplicative_conv"))
    }
    assert count["mult"] == 3 * (256 * (16 + 16) + 256)
    assert count["conv"] == 256 * (16 + 16) + (9 + 9 + 3) * 16 * 16 + 3 * 16


FRAME = frame(dim=256, heads=8, kv_heads=8, head_dim=32)


def test_output_matrix_or_none():
    y = tokens(2, 3, 5, 4)
    without = DenseProjection(out=False).build(frame()).double()
    assert torch.equal(without.out(y), y.transpose(1, 2).flatten(2))
    for config in (Multiplicative(modules=4, out=True), MultiplicativeConv(modules=4, out=True)):
        module = stirred(config.build(frame()))
        expected = torch.nn.functional.linear(
            y.transpose(1, 2).flatten(2), module.to_out.weight, module.to_out.bias
        )
        torch.testing.assert_close(module.out(y), expected)
    for config in (DenseProjection(out=False), Multiplicative(modules=4), MultiplicativeConv()):
        with pytest.raises(WeftError, match="out=true"):
            config.build(frame(heads=4, kv_heads=4))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Multiplicative(modules=0), "modules"),
        (lambda: Multiplicative(modules=5).build(frame()), "not a multiple of modules=5"),
        (lambda: MultiplicativeConv(length=0), "length"),
        (lambda: MultiplicativeConv(width=2), "odd"),
    ],
    ids=["modules", "uneven", "length", "width"],
)
def test_refuses_what_cannot_be(make, said):
    with pytest.raises(WeftError, match=said):
        make()


def test_a_convolution_refuses_grouped_keys_and_queries_of_a_context():
    with pytest.raises(Unsupported, match="kv_heads=1"):
        MultiplicativeConv(modules=4).build(frame(kv_heads=1))
    with pytest.raises(Unsupported, match="context"):
        MultiplicativeConv(modules=4).build(frame()).q(tokens(1, 2, 12).float())


def test_three_forms_of_one_config():
    for text in ("dense(out=false)", "multiplicative(modules=8)", "multiplicative_conv(length=2)"):
        config = PROJECTIONS.parse(text)
        assert PROJECTIONS.read(write(config)) == config == PROJECTIONS.parse(str(config))

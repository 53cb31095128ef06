"""Linear Transformer against the matrix form of its paper."""

import pytest
import torch
import torch.nn.functional as F

from weft.errors import Unsupported, WeftError
from weft.kernels.linear_attention.reference import elu_features as features
from weft.layers.positions import Alibi, Rope
from weft.mixers import Frame, LinearTransformer


def build(**settings):
    frame = Frame(**{"dim": 24, "heads": 4, **settings})
    return LinearTransformer().build(frame).double()


def split(x, linear, heads):
    return F.linear(x, linear.weight, linear.bias).view(*x.shape[:2], heads, -1).transpose(1, 2)


def paper(mixer, x, context=None):
    """Equations 4 and 8 as one matrix of scores."""
    source, project = x if context is None else context, mixer.project
    q = split(x, project.to_q, project.heads)
    k, v = (split(source, part, project.kv_heads) for part in (project.to_k, project.to_v))
    k, v = (y.repeat_interleave(project.heads // project.kv_heads, dim=1) for y in (k, v))
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    if mixer.frame.causal and context is None:
        scores = scores * torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()
    y = (scores / (scores.sum(-1, keepdim=True) + 1e-6)) @ v
    return project.to_out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_equals_the_paper(n, causal, kv_heads):
    mixer, x = build(causal=causal, kv_heads=kv_heads), torch.randn(2, n, 24).double()
    torch.testing.assert_close(mixer(x), paper(mixer, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_a_context_is_read_whole(causal):
    mixer = build(causal=causal)
    x, context = torch.randn(2, 5, 24).double(), torch.randn(2, 90, 24).double()
    expected = paper(mixer, x, context)
    torch.testing.assert_close(mixer(x, context=context), expected, rtol=0, atol=1e-12)


def test_decoding_equals_the_paper_with_a_state_that_does_not_grow():
    mixer, x = build(causal=True, kv_heads=2), torch.randn(2, 150, 24).double()
    state, out = mixer.start(2), []
    for begin, end in ((0, 70), *((t, t + 1) for t in range(70, 90)), (90, 150)):
        y, state = mixer.step(x[:, begin:end], state)
        out.append(y)
        assert state.size() == mixer.state_size(end) == 2 * 6 * 7
    torch.testing.assert_close(torch.cat(out, dim=1), paper(mixer, x), rtol=0, atol=1e-12)


def test_the_state_of_a_half_precision_model_counts_in_float32():
    mixer = LinearTransformer().build(Frame(dim=24, heads=4, causal=True)).bfloat16()
    _, state = mixer.step(torch.randn(1, 3, 24).bfloat16(), mixer.start(1))
    assert {tensor.dtype for tensor in state.tensors().values()} == {torch.float32}


def test_features_are_elu_plus_one_and_stay_positive():
    x = torch.linspace(-9, 9, 101, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(features(x), F.elu(x) + 1, rtol=0, atol=1e-15)
    ours, truth = (torch.autograd.grad(y.sum(), x)[0] for y in (features(x), F.elu(x)))
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-15)
    # elu(x) + 1 itself cancels to 0 here.
    assert features(torch.tensor(-30.0)) == pytest.approx(9.3576e-14, rel=1e-3, abs=0)
    assert features(torch.tensor(300.0, dtype=torch.float16)).dtype == torch.float32


def test_rotary_positions_turn_before_the_features():
    x = torch.randn(1, 9, 24).double()
    plain, turned = build(causal=True), build(causal=True, positions=Rope())
    turned.load_state_dict(plain.state_dict())
    assert not torch.allclose(plain(x), turned(x))
    torch.testing.assert_close(plain(x)[:, 0], turned(x)[:, 0])
    first, state = turned.step(x[:, :4], turned.start(1))
    then, _ = turned.step(x[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, then), dim=1), turned(x))


def test_refuses_a_bias_and_a_bad_eps():
    with pytest.raises(Unsupported, match="no matrix of scores to bias"):
        build(positions=Alibi())
    with pytest.raises(WeftError, match="eps"):
        LinearTransformer(eps=0.0)

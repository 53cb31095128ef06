"""Nyströmformer against the Transformers library, nystrom_attention, and full attention."""

import pytest
import torch
from nystrom_attention.nystrom_attention import NystromAttention, moore_penrose_iter_pinv
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.kernels.nystrom.reference import iterative_inverse, segment_means, segments
from weft.layers.positions import Alibi
from weft.mixers import Frame, Nystromformer


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 2, **(frame or {})})
    return Nystromformer(**settings).build(frame).double().eval()


def gaussian(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def copied(mixer, names, theirs):
    for ours, other in zip(("to_q", "to_k", "to_v"), names, strict=True):
        getattr(theirs, other).load_state_dict(getattr(mixer.project, ours).state_dict())
    theirs.conv.weight.data.copy_(mixer.taps[:, None, :, None])


@pytest.mark.parametrize("landmarks", [4, 8])
def test_equals_the_transformers_library(landmarks):
    """Its first Z belongs to the whole batch, so one row and one head are compared."""
    mixer = build({"heads": 1}, landmarks=landmarks, kernel=5)
    config = NystromformerConfig(
        hidden_size=24,
        num_attention_heads=1,
        num_landmarks=landmarks,
        segment_means_seq_len=32,
        conv_kernel_size=5,
        inv_coeff_init_option=False,
    )
    theirs = NystromformerSelfAttention(config).double().eval()
    copied(mixer, ("query", "key", "value"), theirs)
    x = gaussian(1, 32, 24)
    expected = mixer.project.to_out(theirs(x)[0])
    # Its identity matrix and square roots are float32, so the comparison is as coarse.
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-6)


def test_equals_nystrom_attention():
    mixer = build({"heads": 1, "bias": False}, landmarks=4, kernel=5)
    theirs = NystromAttention(24, 24, 1, 4, residual_conv_kernel=5).double().eval()
    maps = (mixer.project.to_q, mixer.project.to_k, mixer.project.to_v)
    theirs.to_qkv.weight.data.copy_(torch.cat([each.weight for each in maps]))
    theirs.res_conv.weight.data.copy_(mixer.taps[:, None, :, None])
    theirs.to_out[0].weight.data.copy_(mixer.project.to_out.weight)
    theirs.to_out[0].bias.data.zero_()
    x = gaussian(1, 32, 24)
    torch.testing.assert_close(mixer(x), theirs(x), rtol=0, atol=1e-6)


def test_the_iteration_finds_the_inverse():
    a = gaussian(3, 2, 6, 6).softmax(-1) + torch.eye(6).double()
    z = iterative_inverse(a, 20)
    torch.testing.assert_close(z, torch.linalg.pinv(a), rtol=0, atol=1e-9)
    one = a[:1, :1]
    torch.testing.assert_close(
        iterative_inverse(one, 6), moore_penrose_iter_pinv(one, 6), rtol=0, atol=1e-6
    )


def test_as_many_landmarks_as_tokens_are_full_attention():
    mixer, x = build(landmarks=16, kernel=0), gaussian(2, 16, 24)
    q, k, v = mixer.heads(x)
    expected = mixer.project.out(dense_attention(q, k, v)[0])
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-10)
    # The formula itself comes there as well, given iterations.
    many = build(landmarks=16, kernel=0, iterations=40)
    many.load_state_dict(mixer.state_dict())
    near = many.project.out(many._approximate(q, k, v, None))
    torch.testing.assert_close(near, expected, rtol=0, atol=1e-5)


def test_more_landmarks_come_closer():
    x, errors = gaussian(1, 64, 24), []
    for landmarks in (4, 16, 56):
        mixer = build(landmarks=landmarks, kernel=0, iterations=20)
        q, k, v = (y.detach() for y in mixer.heads(x))
        truth = dense_attention(q, k, v)[0]
        errors.append(float((mixer.attention(q, k, v, None, False) - truth).norm()))
    assert errors[0] > errors[1] > errors[2]


def test_segments_are_even_and_ignore_padding():
    inside, there = segments(torch.tensor([10, 3, 7]), 10, 4)
    assert inside.sum(-1).tolist() == [[3, 2, 3, 2], [1, 1, 1, 0], [2, 2, 2, 1]]
    assert there.tolist() == [[True] * 4, [True] * 3 + [False], [True] * 4]
    assert not inside[1, :, 3:].any()
    x = torch.arange(10.0)[None, None, :, None].expand(3, 1, -1, 1)
    means = segment_means(x, inside).squeeze()
    assert means[0].tolist() == [1.0, 3.5, 6.0, 8.5]
    assert means[1].tolist() == [0.0, 1.0, 2.0, 0.0]


def test_a_short_row_in_a_long_batch_is_still_exact():
    mixer, x = build(landmarks=8, kernel=3), gaussian(2, 40, 24)
    valid = torch.arange(40) < torch.tensor([[40], [8]])
    y = mixer(x, valid=valid)
    torch.testing.assert_close(y[1:, :8], mixer(x[1:, :8]), rtol=0, atol=1e-12)
    without = mixer.project.out(mixer._approximate(*mixer.heads(x[1:, :8]), None))
    assert not torch.allclose(y[1:, :8], without, atol=1e-6)


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="none to bias"):
        build({"positions": Alibi()})
    with pytest.raises(Unsupported, match="landmarks are means over all tokens"):
        build({"causal": True})
    for settings in ({"landmarks": 0}, {"iterations": 0}, {"kernel": 4}):
        with pytest.raises(WeftError, match=next(iter(settings))):
            Nystromformer(**settings)

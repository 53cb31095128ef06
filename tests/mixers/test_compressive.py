"""Compressive Transformer against compressive_transformer_pytorch, its limit, and its loss."""

import copy

import pytest
import torch
from compressive_transformer_pytorch.compressive_transformer_pytorch import Memory, SelfAttention

from weft.errors import Unsupported, WeftError
from weft.layers.positions import Rope
from weft.mixers import Compressive, Frame, TransformerXL
from weft.mixers.base import penalties

SIZES = {"segment": 8, "memory": 8, "compressed": 3, "ratio": 4}


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 2, "causal": True, "bias": False, **(frame or {})})
    return Compressive(**{**SIZES, **settings}).build(frame).double().eval()


def gaussian(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def without_positions(mixer):
    for part in (mixer.to_r.weight, mixer.content_bias, mixer.distance_bias):
        part.data.zero_()
    return mixer


def published(mixer):
    """The same weights in the other package."""
    config, project = mixer.config, mixer.project
    theirs = SelfAttention(
        24, config.segment, config.memory, config.compressed, config.ratio, heads=2
    ).double()
    theirs.to_q.weight.data.copy_(project.to_q.weight)
    theirs.to_kv.weight.data.copy_(torch.cat((project.to_k.weight, project.to_v.weight)))
    theirs.to_out.weight.data.copy_(project.to_out.weight)
    theirs.to_out.bias.data.zero_()
    conv = theirs.compress_mem_fn.conv
    conv.weight.data.copy_(mixer.compress.weight[0].permute(2, 1, 0))
    conv.bias.data.copy_(mixer.compress.bias.flatten())
    return theirs


def walk(theirs, x, segment):
    """Segment by segment with its memories: outputs, and the losses where something left."""
    memory, outs, losses = None, [], []
    for part in x.split(segment, 1):
        y, memory, loss = theirs(part, None if memory is None else tuple(memory))
        outs.append(y)
        losses.append(loss)
    assert isinstance(memory, Memory)
    return torch.cat(outs, 1), losses


def test_equals_compressive_transformer_pytorch():
    mixer, x = without_positions(build()), gaussian(2, 64, 24)
    with torch.no_grad():
        expected, _ = walk(published(mixer).eval(), x, 8)
        torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)
        fewer = build(compressed=2)
        fewer.load_state_dict(mixer.state_dict())
        assert not torch.allclose(fewer(x), expected, atol=1e-6)


def test_the_reconstruction_loss_equals_theirs():
    """Theirs freezes its own projection in place from the first loss on; values are right."""
    mixer, x = without_positions(build()).train(), gaussian(2, 64, 24)
    _, losses = walk(published(mixer).train(), x, 8)
    expected = torch.stack([each.detach().squeeze() for each in losses[1:]]).mean()
    mixer(x)
    torch.testing.assert_close(mixer.penalty().detach(), expected, rtol=0, atol=1e-12)


def test_the_reconstruction_loss_trains_the_compression_alone():
    mixer, x = build(reconstruction=0.5).train(), gaussian(2, 64, 24)
    mixer(x)
    mixer.penalty().backward()
    trained = {name for name, p in mixer.named_parameters() if p.grad is not None}
    assert trained == {"compress.weight", "compress.bias"}
    whole = copy.deepcopy(mixer)
    whole.config = Compressive(**SIZES, reconstruction=1.0)
    torch.testing.assert_close(mixer.penalty() * 2, whole.penalty())
    before = float(mixer.penalty().detach())
    for _ in range(30):
        mixer.zero_grad()
        mixer.penalty().backward()
        with torch.no_grad():
            for p in mixer.compress.parameters():
                p -= 0.5 * p.grad
    assert float(mixer.penalty().detach()) < 0.9 * before


def test_padding_is_not_reconstructed_and_nothing_is_without_a_reason():
    mixer, x = build().train(), gaussian(2, 64, 24)
    valid = torch.arange(64) < torch.tensor([[64], [40]])
    mixer(x, valid=valid)
    padded = mixer.penalty().detach()
    loud = torch.where(valid[..., None], x, 9 * x)
    mixer(loud, valid=valid)
    torch.testing.assert_close(mixer.penalty().detach(), padded)
    mixer(x[:, :8])
    assert mixer.penalty() is None  # nothing has left the memory
    pooled = build(compress="mean").train()
    pooled(x)
    assert penalties(pooled) is None
    assert build().penalty() is None  # no training forward yet


def test_slots_of_one_token_are_a_longer_memory():
    """With the identity as compression, this is Transformer-XL."""
    mixer, x = build(ratio=1, memory=6, compressed=5), gaussian(2, 50, 24)
    mixer.compress.weight.data.copy_(torch.eye(24)[None, None])
    mixer.compress.bias.data.zero_()
    longer = TransformerXL(segment=8, memory=11).build(mixer.frame).double().eval()
    longer.load_state_dict({k: v for k, v in mixer.state_dict().items() if "compress" not in k})
    torch.testing.assert_close(mixer(x), longer(x), rtol=0, atol=1e-12)


def test_gradients_stop_at_the_past_but_reach_its_projections():
    mixer, x = build(), gaussian(1, 40, 24).requires_grad_()
    y = mixer(x)[:, 32:]
    (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert not grad[:, :32].any()
    (taps,) = torch.autograd.grad(y.sum(), mixer.compress.weight)
    assert taps.abs().sum() > 0
    free = build(detach=False)
    (grad,) = torch.autograd.grad(free(x)[:, 32:].sum(), x)
    assert grad[:, 12:32].abs().amin(-1).min() > 0


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="relative positions of its own"):
        build({"positions": Rope()})
    for name, settings in (
        ("ratio divides", {"ratio": 3}),
        ("compressed", {"compressed": 0}),
        ("compress is one of", {"compress": "sum"}),
        ("reconstruction", {"reconstruction": -1.0}),
    ):
        with pytest.raises(WeftError, match=name):
            Compressive(**{**SIZES, **settings})

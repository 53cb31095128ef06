"""Memory-compressed attention against the package of that name, and its limit."""

import pytest
import torch
from memory_compressed_attention import MemoryCompressedAttention

from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.layers.positions import Alibi
from weft.mixers import Frame, MemoryCompressed


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 4, "bias": False, **(frame or {})})
    return MemoryCompressed(**settings).build(frame).double().eval()


def gaussian(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
def test_equals_memory_compressed_attention(causal):
    """Theirs divides scores by the root of the model width, and pads on the left."""
    mixer, x = build({"causal": causal}), gaussian(2, 30, 24)
    theirs = MemoryCompressedAttention(24, heads=4, causal=causal).double().eval()
    project = mixer.project
    with torch.no_grad():
        for null in (mixer.null_k, mixer.null_v):
            null.normal_()
        weights = (project.to_q.weight * 2.0, project.to_k.weight, project.to_v.weight)
        theirs.to_qkv.weight.copy_(torch.cat(weights))  # 2 = √(24 / 6)
        theirs.to_out.weight.copy_(project.to_out.weight)
        theirs.to_out.bias.zero_()
        mixer.compress_v.load_state_dict(mixer.compress_k.state_dict())
        # A group of channels per head: (g, w, d in, d out) -> (g·d out, d in, w).
        taps = mixer.compress_k.weight.permute(0, 3, 2, 1).flatten(0, 1)
        theirs.compress_fn.conv.weight.copy_(taps)
        theirs.compress_fn.conv.bias.copy_(mixer.compress_k.bias.flatten())
        theirs.null_k.copy_(mixer.null_k.flatten())
        theirs.null_v.copy_(mixer.null_v.flatten())
        torch.testing.assert_close(mixer(x), theirs(x), rtol=0, atol=1e-12)
        mixer.null_k.zero_()
        assert not torch.allclose(mixer(x), theirs(x), atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_one_token_per_slot_is_full_attention_beside_the_null_slot(causal):
    mixer, x = build({"causal": causal}, width=1), gaussian(2, 30, 24)
    with torch.no_grad():
        for part in (mixer.compress_k, mixer.compress_v):
            part.weight.copy_(torch.eye(6).expand(4, 1, 6, 6))
            part.bias.zero_()
    q, k, v = mixer.heads(x)
    k, v = (torch.nn.functional.pad(y, (0, 0, 1, 0)) for y in (k, v))
    seen = torch.ones(30, 31, dtype=torch.bool)
    expected = dense_attention(q, k, v, mask=seen.tril(1) if causal else seen)[0]
    torch.testing.assert_close(mixer(x), mixer.project.out(expected), rtol=0, atol=1e-12)


def test_early_queries_read_the_null_slot_alone():
    mixer, x = build({"causal": True}, width=5), gaussian(1, 12, 24)
    with torch.no_grad():
        mixer.null_v.normal_()
        y = mixer.attention(*mixer.heads(x), None, False)
    for i in range(4):
        torch.testing.assert_close(y[0, :, i], mixer.null_v[:, 0], rtol=0, atol=1e-12)
    assert not torch.allclose(y[0, :, 4], mixer.null_v[:, 0], atol=1e-4)


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="none to bias"):
        build({"positions": Alibi()})
    with pytest.raises(WeftError, match="width"):
        MemoryCompressed(width=0)

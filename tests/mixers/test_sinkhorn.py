"""Sinkhorn attention: its sorting against sinkhorn_transformer, and the limits of its matrix."""

import pytest
import torch

from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.kernels.sinkhorn.triton import balance, causal_balance
from weft.layers.positions import Alibi
from weft.mixers import Frame, Sinkhorn, sinkhorn


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 2, **(frame or {})})
    return Sinkhorn(**{"block": 8, **settings}).build(frame).double().eval()


def gaussian(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_sorting_equals_sinkhorn_transformer():
    from sinkhorn_transformer.sinkhorn_transformer import sinkhorn_sorting_operator

    scores = gaussian(3, 5, 5)
    theirs = sinkhorn_sorting_operator(scores, n_iters=4)  # ends on columns, ours on rows
    expected = theirs / theirs.sum(-1, keepdim=True)
    torch.testing.assert_close(balance(scores, 4), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(balance(scores, 3), expected, atol=1e-6)


def test_the_limit_is_doubly_stochastic():
    s = balance(gaussian(2, 6, 6), 60)
    for axis in (-1, -2):
        torch.testing.assert_close(s.sum(axis), torch.ones(2, 6).double(), rtol=0, atol=1e-9)


def test_the_causal_matrix_is_of_the_past_alone():
    scores = gaussian(2, 6, 6)
    s = causal_balance(scores, 5)
    assert not s.triu().any()
    assert not s[:, 0].any()
    torch.testing.assert_close(s[:, 1:].sum(-1), torch.ones(2, 5).double())
    changed = scores.clone()
    changed[:, 4:] = gaussian(2, 2, 6, seed=2)
    assert torch.equal(causal_balance(changed, 5)[:, :4], s[:, :4])
    # Whole column sums, as both ways, would read the later rows.
    below = torch.ones(6, 6, dtype=torch.bool).tril(-1) | torch.eye(6, dtype=torch.bool)
    whole = [balance(each, 5, below)[:, :4] for each in (scores, changed)]
    assert not torch.allclose(*whole, atol=1e-6)


def expected_with(mixer, x, s):
    """Dense attention under a given matrix of blocks, duplicates counted as the equation does."""
    q, k, v = mixer.heads(x)
    w, blocks = mixer.config.block, x.shape[1] // mixer.config.block
    outs = []
    for u in range(blocks):
        own = slice(u * w, (u + 1) * w)
        cut = (y.unflatten(2, (blocks, w)) for y in (k, v))
        sorted_k, sorted_v = (torch.einsum("v,bhvtd->bhtd", s[u], y) for y in cut)
        keys, values = (
            torch.cat((sorted_k, k[:, :, own]), 2),
            torch.cat((sorted_v, v[:, :, own]), 2),
        )
        outs.append(dense_attention(q[:, :, own], keys, values)[0])
    return mixer.project.out(torch.cat(outs, 2))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_a_permutation_sorts_the_blocks(order, monkeypatch):
    mixer, x = build(), gaussian(2, 32, 24)
    s = torch.eye(4, dtype=torch.float64)[list(order)]
    monkeypatch.setattr(sinkhorn, "balance", lambda scores, *_: s.expand_as(scores))
    torch.testing.assert_close(mixer(x), expected_with(mixer, x, s), rtol=0, atol=1e-12)
    if order == (0, 1, 2, 3):  # every key twice is block-local attention
        q, k, v = mixer.heads(x)
        same = torch.arange(32)[:, None] // 8 == torch.arange(32) // 8
        local = mixer.project.out(dense_attention(q, k, v, mask=same)[0])
        torch.testing.assert_close(mixer(x), local, rtol=0, atol=1e-12)


def test_a_soft_matrix_mixes_values_by_values():
    """sinkhorn_transformer 0.11.4 takes sorted keys for values when it reads both ways."""
    mixer, x = build(), gaussian(1, 32, 24)
    q, k, _ = mixer.heads(x)
    asks, keys = (y.unflatten(2, (4, 8)).mean(3)[0] for y in (q, k))
    s = balance(asks @ keys.mT / (12**0.5 * 0.75), 8)
    heads = []
    for a in range(2):
        one = build({"heads": 1, "head_dim": 12, "bias": True})
        for name in ("to_q", "to_k", "to_v"):
            mine = getattr(mixer.project, name)
            getattr(one.project, name).weight.data.copy_(mine.weight[a * 12 : a * 12 + 12])
            getattr(one.project, name).bias.data.copy_(mine.bias[a * 12 : a * 12 + 12])
        one.project.to_out.weight.data.copy_(mixer.project.to_out.weight[:, a * 12 : a * 12 + 12])
        one.project.to_out.bias.data.copy_(mixer.project.to_out.bias / 2)
        heads.append(expected_with(one, x, s[a]))
    torch.testing.assert_close(mixer(x), sum(heads), rtol=0, atol=1e-12)


def test_noise_is_for_training_alone():
    mixer, x = build(), gaussian(1, 32, 24)
    assert torch.equal(mixer(x), mixer(x))
    mixer.train()
    assert not torch.allclose(mixer(x), mixer(x), atol=1e-6)
    still = build(noise=False).train()
    assert torch.equal(still(x), still(x))


def test_one_sorted_block_cut_reads_it_alone():
    mixer, x = build(cut=1, block=32), gaussian(1, 32, 24)
    q, k, v = mixer.heads(x)  # a single block is full attention
    expected = mixer.project.out(dense_attention(q, k, v)[0])
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="none to bias"):
        build({"positions": Alibi()})
    with pytest.raises(Unsupported, match="cut=None can be causal"):
        build({"causal": True}, cut=2)
    for settings in ({"block": 0}, {"iterations": 0}, {"temperature": 0.0}, {"cut": 0}):
        with pytest.raises(WeftError, match=next(iter(settings))):
            Sinkhorn(**settings)

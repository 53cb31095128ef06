"""Split, encode, merge: blocks that meet through their embeddings alone."""

import pytest
import torch
import torch.nn.functional as F

from mixers.fixed_patterns import attention, build, close, pairs, tokens
from weft.errors import Unsupported, WeftError
from weft.mixers import BlockLocal, Frame, SplitEncodeMerge


def silenced(mixer):
    with torch.no_grad():
        out = mixer.join.project.to_out if mixer.config.merge == "attention" else mixer.to_out
        out.weight.zero_()
        out.bias.zero_()
    return mixer


@pytest.mark.parametrize("merge", ["attention", "mean"])
@pytest.mark.parametrize("n", [3, 8, 20, 32])
def test_without_the_merge_it_is_block_local(n, merge):
    mixer, x = silenced(build(SplitEncodeMerge(block=8, merge=merge), kv_heads=2)), tokens(n)
    other = build(BlockLocal(block=8), kv_heads=2)
    other.project.load_state_dict(mixer.project.state_dict())
    torch.testing.assert_close(mixer(x), other(x), **close)
    seen = pairs(n, lambda i, j: i // 8 == j // 8)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize("n", [8, 20])
def test_what_the_merge_adds_is_attention_among_means(n):
    """torch's own multi-head attention over the means of the blocks."""
    mixer, x = build(SplitEncodeMerge(block=8)), tokens(n)
    local = attention(mixer.project, x, pairs(n, lambda i, j: i // 8 == j // 8))
    means = torch.stack([block.mean(1) for block in local.split(8, dim=1)], dim=1)
    theirs = torch.nn.MultiheadAttention(24, 4, batch_first=True).double()
    project = mixer.join.project
    with torch.no_grad():
        maps = (project.to_q, project.to_k, project.to_v)
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in maps]))
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in maps]))
        theirs.out_proj.load_state_dict(project.to_out.state_dict())
    joined = theirs(means, means, means, need_weights=False)[0]
    expected = local + joined.repeat_interleave(8, dim=1)[:, :n]
    torch.testing.assert_close(mixer(x), expected, **close)


def test_merging_by_the_mean():
    mixer, x = build(SplitEncodeMerge(block=8, merge="mean")), tokens(20)
    local = attention(mixer.project, x, pairs(20, lambda i, j: i // 8 == j // 8))
    means = torch.stack([block.mean(1) for block in local.split(8, dim=1)], dim=1)
    added = F.linear(means.mean(1, keepdim=True), mixer.to_out.weight, mixer.to_out.bias)
    torch.testing.assert_close(mixer(x), local + added, **close)


def test_one_block_is_full_attention_beside_its_own_mean():
    mixer, x = build(SplitEncodeMerge(block=64)), tokens(30)
    local = attention(mixer.project, x, None)
    project = mixer.join.project
    added = project.to_out(project.to_v(local.mean(1, keepdim=True)))
    torch.testing.assert_close(mixer(x), local + added, **close)


def test_blocks_meet_through_their_means_alone():
    """Tokens of another block feel a change as one and the same addition."""
    mixer, x = build(SplitEncodeMerge(block=8)), tokens(32)
    y = mixer(x)
    x[:, 3] += 1.0
    moved = mixer(x) - y
    assert (moved.abs().amax(-1) > 0).all()
    for at in (8, 16, 24):
        first = moved[:, at : at + 1].expand(-1, 8, -1)
        torch.testing.assert_close(moved[:, at : at + 8], first, rtol=0, atol=1e-9)


def test_refusals():
    with pytest.raises(WeftError, match="block is a whole number of at least 1"):
        SplitEncodeMerge(block=0)
    with pytest.raises(WeftError, match="merge is one of"):
        SplitEncodeMerge(merge="sum")
    with pytest.raises(Unsupported, match="split_encode_merge cannot be causal"):
        SplitEncodeMerge().build(Frame(dim=24, heads=4, causal=True))

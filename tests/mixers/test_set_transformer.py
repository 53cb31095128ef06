"""The Set Transformer against PyTorch Geometric's, and sets that have no order."""

import pytest
import torch
import torch.nn.functional as F

from mixers.fixed_patterns import DIM, HEADS, build, close, package_file, tokens
from weft.errors import Unsupported, WeftError
from weft.layers.cross_attention import PoolByAttention
from weft.layers.positions import Rope
from weft.mixers import Frame, SetTransformer


def geometric():
    """One file of the package, which needs torch alone."""
    return package_file("torch_geometric", "nn/aggr/utils.py")


def copy_attention(mine, theirs):
    """Weights of torch's multi-head attention."""
    with torch.no_grad():
        maps = (mine.to_q, mine.to_k, mine.to_v)
        weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
        for linear, weight, bias in zip(maps, weights, biases, strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        mine.to_out.load_state_dict(theirs.out_proj.state_dict())


def copy_block(mine, theirs):
    copy_attention(mine.attention.project, theirs.attn)
    mine.norm.load_state_dict(theirs.layer_norm1.state_dict())
    mine.hidden.load_state_dict(theirs.lin.state_dict())
    mine.last_norm.load_state_dict(theirs.layer_norm2.state_dict())


def stirred(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return module.double()


@pytest.mark.parametrize("lengths", [(20, 20), (20, 7)])
def test_equals_pytorch_geometric(lengths):
    theirs = stirred(geometric().InducedSetAttentionBlock(DIM, 5, HEADS))
    mixer, x = build(SetTransformer(points=5)), tokens(20)
    with torch.no_grad():
        mixer.points.copy_(theirs.ind[0])
    copy_block(mixer.gather, theirs.mab1)
    outer = theirs.mab2
    copy_attention(mixer.spread.project, outer.attn)
    valid = torch.arange(20) < torch.tensor(lengths)[:, None]
    h = outer.layer_norm1(x + mixer(x, valid=valid))
    found = outer.layer_norm2(h + F.relu(outer.lin(h)))
    torch.testing.assert_close(found[valid], theirs(x, valid)[valid], rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", [(20, 20), (20, 7)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_pooling_equals_pytorch_geometric(seeds, lengths):
    theirs = stirred(geometric().PoolingByMultiheadAttention(DIM, seeds, HEADS))
    pool, x = PoolByAttention(DIM, HEADS, seeds).double(), tokens(20)
    with torch.no_grad():
        pool.seeds.copy_(theirs.seed[0])
    pool.before.load_state_dict(theirs.lin.state_dict())
    copy_block(pool.block, theirs.mab)
    valid = torch.arange(20) < torch.tensor(lengths)[:, None]
    found = pool(x, valid=valid)
    assert found.shape == (2, seeds, DIM)
    torch.testing.assert_close(found, theirs(x, valid), rtol=0, atol=1e-6)
    order = torch.randperm(20)
    torch.testing.assert_close(pool(x[:, order], valid=valid[:, order]), found, **close)


def test_permuting_tokens_permutes_outputs():
    mixer, x, order = build(SetTransformer(points=4)), tokens(30), torch.randperm(30)
    torch.testing.assert_close(mixer(x[:, order]), mixer(x)[:, order], **close)


def test_one_point_gives_every_token_the_same():
    """With one key there is nothing to choose."""
    mixer, x = build(SetTransformer(points=1)), tokens(9)
    y = mixer(x)
    torch.testing.assert_close(y, y[:, :1].expand_as(y), **close)


def test_a_context_is_what_the_points_read():
    mixer, x, context = build(SetTransformer(points=4)), tokens(7), tokens(12)
    torch.testing.assert_close(mixer(x, context=x), mixer(x), **close)
    assert not torch.allclose(mixer(x, context=context), mixer(x))


def test_refusals():
    with pytest.raises(WeftError, match="points is a whole number of at least 1"):
        SetTransformer(points=0)
    with pytest.raises(WeftError, match="seeds counts the vectors that remain"):
        PoolByAttention(DIM, HEADS, 0)
    with pytest.raises(Unsupported, match="sets, which have no order"):
        SetTransformer().build(Frame(dim=DIM, heads=HEADS, positions=Rope()))

"""The Funnel: its pooling against the Transformers library, its limits, lengths, padding, heads."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from model_parts import built, embedding, ids
from transformers import FunnelConfig
from transformers.models.funnel.modeling_funnel import FunnelAttentionStructure

from weft.errors import WeftError
from weft.mixers import Frame
from weft.models import Classifier, Encoder, Funnel, Stack, load, save

FRAME = Frame(dim=12, heads=3, length=40)


def config(embed=None, stack=None, **settings):
    body = Stack(**{"frame": FRAME, "order": "sfsf", **(stack or {})})
    return Funnel(embedding=embedding(**embed or {}), stack=body, **settings)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_equals_transformers(pool):
    theirs = FunnelAttentionStructure(
        FunnelConfig(pooling_type=pool, separate_cls=False, truncate_seq=False)
    )
    ours, x = built(config(pool=pool)), torch.randn(2, 14, 12, dtype=torch.float64)
    expected = theirs.pool_tensor(x, mode=pool, stride=2)
    torch.testing.assert_close(ours._pooled(x, None)[0], expected, rtol=0, atol=1e-12)


def test_one_block_without_a_decoder_is_an_encoder():
    plain = Encoder(embedding=embedding(registers=1), stack=Stack(frame=FRAME, order="sfsf"))
    ours, theirs = built(config({"registers": 1}, blocks=1, decoder="")), built(plain)
    theirs.load_state_dict(ours.state_dict())
    valid = torch.rand(3, 17) < 0.7
    x = ids(3, 17)
    torch.testing.assert_close(ours(x, valid=valid), theirs(x, valid=valid), rtol=0, atol=1e-10)


def test_blocks_shrink_and_their_first_layer_reads_the_block_before():
    ours, seen = built(config({"registers": 1}, stride=3)), []
    for block in (ours.stack, *ours.narrower, ours.decoder):
        block.register_forward_pre_hook(
            lambda _, args, given: seen.append((args[0], given.get("context"))), with_kwargs=True
        )
    assert ours(ids(2, 20)).shape == (2, 20, 12)
    assert [len(x[0]) for x, _ in seen] == [1 + 20, 1 + 7, 1 + 3, 1 + 20]
    assert [None if c is None else len(c[0]) for _, c in seen] == [None, 21, 8, None]
    (_, _), (queries, context), *_ = seen
    torch.testing.assert_close(queries[:, 0], context[:, 0])
    torch.testing.assert_close(queries[:, 1], context[:, 1:4].mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(queries[:, -1], context[:, 19:21].mean(1), rtol=0, atol=1e-12)


def test_the_pooled_layer_is_attention_with_pooled_queries():
    """The first sublayer of the second block, from its weights."""
    ours = built(config(blocks=2, decoder=""))
    layer, h = ours.narrower[0].sublayers[0], torch.randn(2, 8, 12, dtype=torch.float64)
    queries = h.unflatten(1, (4, 2)).mean(2)
    project, normed = layer.body.project, layer.norm(queries)
    parts = (project.to_q(normed), project.to_k(h), project.to_v(h))
    q, k, v = (y.unflatten(-1, (3, 4)).transpose(1, 2) for y in parts)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    caught = []
    layer.register_forward_hook(lambda m, args, out: caught.append(out))
    ours.narrower[0](queries, context=h)
    torch.testing.assert_close(caught[0], queries + project.to_out(y), rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"decoder": ""}, {"pool": "max", "stride": 3}])
@pytest.mark.parametrize("mixer", ["full", "sliding_window(window=3)"])
def test_padding_changes_nothing(settings, mixer):
    ours = built(config({"registers": 1}, {"mixer": mixer}, **settings)).eval()
    x, valid = ids(3, 21), torch.ones(3, 21, dtype=torch.bool)
    valid[1, :9] = False
    valid[2, [2, 3, 11, 19, 20]] = False
    y = ours(x, valid=valid)
    assert not y[~valid].any()
    for row in range(3):
        alone = ours(x[row][valid[row]][None])[0]
        torch.testing.assert_close(y[row, valid[row]], alone, rtol=0, atol=1e-10)


def test_it_classifies_and_is_saved(tmp_path):
    model = built(Classifier(trunk=config({"registers": 1}), classes=3, pool="first"))
    model = model.float().eval()
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    assert torch.equal(again(ids(2, 9)), model(ids(2, 9)))
    model(ids(2, 9)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": 0}, "at least 1 block"),
        ({"stride": 1}, "pools at least 2 tokens"),
        ({"pool": "sum"}, "pool is one of 'mean', 'max'"),
        ({"decoder": "ff"}, "an order needs at least one 's'"),
        ({"stack": Stack(frame=FRAME, order="sf")}, "an order needs at least one 's'"),
        ({"stack": Stack(frame=FRAME, order="sfsf", mixer="full, full")}, "share one mixer"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(WeftError, match=message):
        dataclasses.replace(config(), **change)

"""Routing attention against routing_transformer, dense attention, and online k-means by hand."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

from weft.errors import Unsupported, WeftError
from weft.kernels.dense.reference import dense_attention
from weft.layers.positions import Alibi
from weft.mixers import Frame, Routing

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from routing_transformer.routing_transformer import KmeansAttention, kmeans_iter


def build(frame=None, **settings):
    torch.manual_seed(0)
    frame = Frame(**{"dim": 24, "heads": 2, "length": 64, **(frame or {})})
    return Routing(**settings).build(frame).double().eval()


def gaussian(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equals_routing_transformer_both_ways():
    mixer, x = build(clusters=4, window=10), gaussian(2, 40, 24)
    theirs = KmeansAttention(4, 10, 2, 12, shared_qk=True).double().eval()
    theirs.kmeans.means.copy_(mixer.centroids)
    theirs.kmeans.initted.fill_(True)
    q, _, v, _ = mixer.heads(x)
    expected = mixer.out(theirs(q, q, v)[0])
    # Its mean divides by the count plus 1e-5.
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-4)
    other = copy.deepcopy(mixer)
    other.centroids.neg_()
    assert not torch.allclose(other(x), expected, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
def test_one_cluster_is_dense_attention_with_shared_keys(causal):
    mixer, x = build({"causal": causal}, clusters=1, window=64), gaussian(2, 50, 24)
    q, k, v, _ = mixer.heads(x)
    allowed = ~torch.eye(50, dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
        allowed[0, 0] = True  # the first token has nothing else to read
    expected = mixer.out(dense_attention(q, k, v, mask=allowed)[0])
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)


def test_causal_clusters_do_not_depend_on_the_future_but_published_ones_do():
    mixer, x = build({"causal": True}, clusters=4, window=5), gaussian(1, 40, 24)
    theirs = KmeansAttention(4, 5, 2, 12, shared_qk=True, causal=True).double().eval()
    theirs.kmeans.means.copy_(mixer.centroids)
    theirs.kmeans.initted.fill_(True)
    changed = torch.cat((x[:, :30], gaussian(1, 10, 24, seed=2)), 1)
    ours = [mixer(y)[:, :30] for y in (x, changed)]
    torch.testing.assert_close(*ours, rtol=0, atol=1e-13)
    published = []
    for y in (x, changed):
        q, _, v, _ = mixer.heads(y)
        published.append(theirs(q, q, v)[0][:, :, :30])
    assert not torch.allclose(*published, atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_training_moves_the_centroids_and_evaluation_does_not(causal):
    mixer, x = build({"causal": causal}, clusters=4, window=10, decay=0.9), gaussian(3, 40, 24)
    before = mixer.centroids.clone()
    mixer(x)
    assert torch.equal(mixer.centroids, before)
    unit = F.normalize(mixer.heads(x)[0], dim=-1).detach()
    found = kmeans_iter(unit, before)  # the mean direction of each cluster, by the other package
    expected = F.normalize(0.9 * before + 0.1 * found, dim=-1)
    mixer.train()(x)
    torch.testing.assert_close(mixer.centroids, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(mixer.centroids, before, atol=1e-4)


def test_padding_and_empty_clusters_move_nothing():
    mixer, x = build(clusters=4, window=10, decay=0.5).train(), gaussian(2, 40, 24)
    twin, valid = copy.deepcopy(mixer), torch.arange(40) < torch.tensor([[40], [7]])
    loud = torch.where(valid[..., None], x, 50 * gaussian(2, 40, 24, seed=3))
    mixer(x, valid=valid)
    twin(loud, valid=valid)
    assert torch.equal(mixer.centroids, twin.centroids)
    lone, before = build(clusters=8).train(), build(clusters=8).centroids
    lone(x[:1, :1])
    moved = (lone.centroids != before).any(-1)
    assert moved.sum(-1).max() == 1


def test_what_trained_before_does_not_change_an_evaluation():
    """Only the centroids carry over, and they are in the state_dict."""
    mixer, x = build(clusters=4, window=10), gaussian(1, 40, 24)
    mixer.train()(gaussian(2, 30, 24, seed=5))
    fresh = build(clusters=4, window=10)
    fresh.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer.eval()(x), fresh(x))


def test_clusters_follow_the_length():
    assert build({"length": 400}).clusters == 20
    assert build({"length": None}).clusters == 64
    assert build({"length": 400, "causal": True}, clusters=10).chunk == 40


def test_refuses_what_it_cannot_do():
    with pytest.raises(Unsupported, match="no bias per pair"):
        build({"positions": Alibi()})
    for settings in ({"clusters": 0}, {"window": 0}, {"decay": 1.5}):
        with pytest.raises(WeftError, match=next(iter(settings))):
            Routing(**settings)

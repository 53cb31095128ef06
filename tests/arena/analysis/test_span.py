"""Required spans: against dense probabilities from the equation, and against closed forms."""

import math

import numpy as np
import pytest
import torch

from weft.arena.analysis import span
from weft.arena.analysis.span import required_spans, spans_of
from weft.arena.data.examples import Examples, TokenRows
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Encoder, Stack
from weft.patterns.derive import mask

DIM, HEADS = 16, 2


def build(mixer, *, layers=1, registers=0, kv_heads=None):
    frame = Frame(dim=DIM, heads=HEADS, kv_heads=kv_heads, length=64)
    stack = Stack(frame=frame, order="s" * layers, mixer=mixer)
    embedding = Embedding(vocab=9, positions="learned", registers=registers)
    trunk = Encoder(embedding=embedding, stack=stack)
    model = Classifier(trunk=trunk, classes=3).build().double().eval()
    with torch.no_grad():  # large enough for attention that is far from uniform
        for parameter in model.parameters():
            parameter.normal_(std=0.7, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


def split(lengths, seed=0):
    draw = np.random.default_rng(seed)
    return Examples(TokenRows.of([draw.integers(0, 9, size=n) for n in lengths]), 64)


def probabilities(model, x, allowed=None):
    """(h, n, n) of the first layer, for one sequence without padding."""
    trunk = model.trunk
    embedded = trunk.embedding(x)
    if trunk.registers:
        embedded = torch.cat((trunk.register_rows(len(x)), embedded), dim=1)
    sub = trunk.stack.sublayers[0]
    q, k, _ = sub.body.heads(sub.norm(embedded))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1)[0]


def expected(weights):
    """(h, n): Σ_j a_ij·|i − j|."""
    n = weights.shape[-1]
    index = torch.arange(n)
    return (weights * (index[:, None] - index).abs()).sum(-1)


@pytest.mark.parametrize("registers", [0, 2])
def test_full_attention(registers):
    model, data = build("full", registers=registers), split([13])
    n = 13 + registers
    found = spans_of(model, data.batch(np.array([0])), torch.arange(n)[None])[0]
    truth = expected(probabilities(model, data.batch(np.array([0])).x))
    torch.testing.assert_close(found[0], truth)
    assert truth.std() > 0.1, "all rows alike would prove little"


def test_a_window_hides_what_it_hides():
    model, data = build("sliding_window(window=3)"), split([13])
    found = spans_of(model, data.batch(np.array([0])), torch.arange(13)[None])[0]
    allowed = mask(model.trunk.stack.mixers[0].pattern, 13, heads=HEADS)
    truth = expected(probabilities(model, data.batch(np.array([0])).x, allowed))
    torch.testing.assert_close(found[0], truth)
    assert found.max() < 3


def test_padding_changes_nothing():
    model, data = build("full"), split([13, 29])
    alone = spans_of(model, data.batch(np.array([0])), torch.arange(13)[None])[0]
    padded = spans_of(model, data.batch(np.array([0, 1])), torch.arange(13).expand(2, 13))[0]
    torch.testing.assert_close(padded[0], alone[0])


def test_feature_maps_have_weights_too():
    model, data = build("linear_transformer"), split([13])
    found = spans_of(model, data.batch(np.array([0])), torch.arange(13)[None])[0]
    sub, x = model.trunk.stack.sublayers[0], data.batch(np.array([0])).x
    q, k, _ = sub.body.heads(sub.norm(model.trunk.embedding(x)))
    weights = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).transpose(-1, -2)
    truth = expected((weights / weights.sum(-1, keepdim=True))[0])
    torch.testing.assert_close(found[0], truth)


def test_slots_pass_on_what_they_are_made_of():
    """Linformer: a query weighs the tokens of a slot by E, however the product is ordered."""
    model, data = build("linformer(rank=4)"), split([13])
    batch = data.batch(np.arange(1))
    sub = model.trunk.stack.sublayers[0]
    q, k, _ = sub.body.heads(sub.norm(model.trunk.embedding(batch.x)))
    slots = sub.body.compress_k(k)
    shares = (q @ slots.mT / math.sqrt(q.shape[-1])).softmax(-1)[0]  # (h, n, r)
    weights = (shares @ sub.body.compress_v.weight[0, :, :13]).abs()  # (h, n, n)
    weights = weights / weights.sum(-1, keepdim=True)
    found = spans_of(model, batch, torch.arange(13)[None])
    torch.testing.assert_close(found[0][0], expected(weights))


def test_grouped_keys_average_their_queries():
    model, data = build("full", kv_heads=1), split([13])
    found = spans_of(model, data.batch(np.array([0])), torch.arange(13)[None])[0]
    sub, x = model.trunk.stack.sublayers[0], data.batch(np.array([0])).x
    q, k, _ = sub.body.heads(sub.norm(model.trunk.embedding(x)))
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)[0]
    torch.testing.assert_close(found[0, 0], expected(weights).mean(0))


def test_the_rows_are_means_over_all_queries(monkeypatch):
    """As many draws as it takes: the estimate comes close to the mean over all queries."""
    monkeypatch.setattr(span, "QUERIES", 200)
    model, data = build("full", layers=2), split([20] * 8)
    rows = required_spans(model, data, samples=8)
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(row["samples"] == 8 and row["queries"] == 1600 for row in rows)
    every = [expected(probabilities(model, data.batch(np.array([i])).x)) for i in range(8)]
    truth, spread = torch.stack(every).mean((0, 2)), torch.stack(every).std((0, 2))
    for head in range(HEADS):
        assert abs(rows[head]["span"] - truth[head]) < 5 * spread[head] / math.sqrt(1600)


def test_everything_is_left_as_it_was():
    model, data = build("full"), split([9, 9])
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    y = model(data.batch(np.array([0])).x)
    required_spans(model, data, samples=2)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert "qkv" not in vars(model.trunk.stack.mixers[0].project)
    torch.testing.assert_close(model(data.batch(np.array([0])).x), y, rtol=0, atol=0)
    assert model.trunk.stack.mixers[0].project.to_v._forward_hooks == {}


def test_a_mechanism_without_values_has_no_span():
    assert required_spans(build("fnet"), split([9, 9]), samples=2) == []


def test_a_wrong_distance_is_noticed(monkeypatch):
    """The comparison with the equation fails if distances are off by one."""
    model, data = build("full"), split([13])
    batch = data.batch(np.array([0]))
    shifted = spans_of(model, batch, (torch.arange(13)[None] + 1) % 13)[0]
    with pytest.raises(AssertionError):
        torch.testing.assert_close(shifted[0], expected(probabilities(model, batch.x)))

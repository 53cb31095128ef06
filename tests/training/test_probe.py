"""Probes against numpy's own optimum, and against what a layer plainly holds."""

import numpy as np
import pytest
import torch

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Decoder, Encoder, LanguageModel, Stack
from weft.objectives import Batch
from weft.training import linear_probe
from weft.training.probe import fitted, layer_features, linear_probes


def model_of(kind=Decoder, **stack):
    torch.manual_seed(0)
    trunk = kind(
        embedding=Embedding(vocab=6, positions="sinusoidal", registers=1),
        stack=Stack(frame=Frame(dim=8, heads=2), order="sf" * 3, dropout=0.3, **stack),
    )
    return LanguageModel(trunk=trunk).build()


def newton(features, labels, classes, decay, steps=30):
    """The same loss by Newton's method, in numpy."""
    n, c = features.shape
    x = np.concatenate((features, np.ones((n, 1))), 1)
    weights = np.zeros((classes, c + 1))
    ridge = np.diag(np.tile(np.r_[np.full(c, decay), 0.0], classes))
    for _ in range(steps):
        scores = x @ weights.T
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        gradient = (chances - np.eye(classes)[labels]).T @ x / n + np.c_[
            decay * weights[:, :c], np.zeros(classes)
        ]
        hessian = ridge.copy()
        for i in range(classes):
            for j in range(classes):
                w = chances[:, i] * ((i == j) - chances[:, j])
                hessian[i * (c + 1) : (i + 1) * (c + 1), j * (c + 1) : (j + 1) * (c + 1)] += (
                    x.T @ (x * w[:, None]) / n
                )
        weights -= (np.linalg.pinv(hessian) @ gradient.ravel()).reshape(weights.shape)
    return weights


def test_the_optimum_is_numpys():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(80, 4)), rng.integers(3, size=80)
    weight, bias = fitted(torch.tensor(features), torch.tensor(labels), 3, 0.05)
    truth = newton(features, labels, 3, 0.05)
    np.testing.assert_allclose(weight.numpy(), truth[:, :4], atol=1e-6)
    # A constant added to all biases changes nothing.
    np.testing.assert_allclose(bias - bias.mean(), truth[:, 4] - truth[:, 4].mean(), atol=1e-6)
    other = newton(features, labels, 3, 0.5)
    assert np.abs(weight.numpy() - other[:, :4]).max() > 1e-2


def batches(seed, rows=60):
    """Is there a 5 in the row? Of ragged rows."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, (rows, 7), generator=draw)
    lengths = torch.randint(2, 8, (rows, 1), generator=draw)
    labels = torch.arange(rows) % 2
    ids[labels == 1, 1] = 5
    valid = torch.arange(7) < lengths
    return [
        Batch(x=ids[i : i + 16], valid=valid[i : i + 16], y=labels[i : i + 16])
        for i in range(0, rows, 16)
    ]


def test_a_layer_tells_what_it_holds():
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = linear_probe(model, batches(0), batches(1))
    assert found.layer == 2
    assert min(found.accuracy, found.train_accuracy) > 0.8
    again = linear_probe(model, batches(0), batches(1))
    assert torch.equal(again.weight, found.weight)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    wrong = [Batch(x=b.x, valid=b.valid, y=1 - b.y) for b in batches(1)]
    assert linear_probe(model, batches(0), wrong).accuracy == pytest.approx(1 - found.accuracy)


def test_features_are_means_of_the_stream():
    model = model_of(Encoder).eval()
    outputs = {}
    for place in (1, 3, 5):
        model.trunk.stack.sublayers[place].register_forward_hook(
            lambda module, args, y, place=place: outputs.update({place: y.detach()})
        )
    (batch,) = batches(0, rows=16)
    for layer in (1, 2, 3):
        features, labels = layer_features(model, [batch], layer)
        model(batch.x, valid=batch.valid)
        stream = outputs[2 * layer - 1][:, 1:].double()  # without the register
        truth = torch.stack(
            [row[real].mean(0) for row, real in zip(stream, batch.valid, strict=True)]
        )
        torch.testing.assert_close(features, truth)
        assert torch.equal(labels, batch.y)


def test_what_cannot_be_probed_says_so():
    with pytest.raises(WeftError, match="from 1 to 3"):
        linear_probe(model_of(), batches(0), batches(1), layer=4)
    with pytest.raises(WeftError, match="decay is 0 or more"):
        linear_probe(model_of(), batches(0), batches(1), decay=-1.0)
    with pytest.raises(WeftError, match="gave none"):
        linear_probe(model_of(), [], batches(1))
    with pytest.raises(WeftError, match="learns classes"):
        linear_probe(model_of(), [Batch(x=torch.zeros(1, 2, dtype=torch.long))], batches(1))
    with pytest.raises(Unsupported, match="reversible"):
        linear_probe(model_of(recompute="reversible"), batches(0), batches(1))


def test_probes_of_all_layers_are_those_of_each():
    model = model_of()
    rng = torch.Generator().manual_seed(1)
    batches = [
        Batch(x=torch.randint(6, (8, 5), generator=rng), y=torch.arange(8) % 3) for _ in range(2)
    ]
    every = linear_probes(model, batches, batches, decay=1.0)
    assert [probe.layer for probe in every] == [1, 2, 3]
    for probe in every:
        alone = linear_probe(model, batches, batches, layer=probe.layer, decay=1.0)
        torch.testing.assert_close(probe.weight, alone.weight)
        assert probe.accuracy == alone.accuracy
    assert not torch.equal(every[0].weight, every[2].weight)
    with pytest.raises(WeftError, match="from 1 to 3"):
        linear_probes(model, batches, batches, layers=(1, 4))

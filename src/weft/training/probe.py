"""Linear probes: how well a linear classifier on a layer solves a task.

    features    mean over a document's real tokens of the stream after layer l, then standardised
                by the mean and deviation over the training rows
    probe       argmin_{W, b} mean −log softmax(W f + b)_y + decay/2 · |W|²

The model's weights stay as they are. The loss is convex, so the probe is a function of the data: it
is found by L-BFGS in float64.

Paper: Chen et al. 2020, Generative Pretraining from Pixels, section 3.2,
https://openai.com/index/image-gpt/ (the best layers stand in the middle)
Differs from it: features are standardised instead of passing the next layer's norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.generate.decoding import evaluating
from weft.models.heads.document import pooled
from weft.models.registry import TrunkModel
from weft.models.stack.layerwise import check_walkable, layers_of, walk
from weft.objectives import Batch


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear classifier on one layer, and how often it is right."""

    layer: int  # from 1
    train_accuracy: float
    accuracy: float
    weight: Tensor  # (classes, c), on standardised features
    bias: Tensor  # (classes,)


def linear_probe(
    model: TrunkModel,
    train: Iterable[Batch],
    test: Iterable[Batch],
    *,
    layer: int | None = None,
    decay: float = 1e-3,
) -> Probe:
    """Fit a probe on the rows of `train`, score it on `test`; layer None: the middle one."""
    layers = probed_layers(model)
    layer = (layers + 1) // 2 if layer is None else layer
    return linear_probes(model, train, test, layers=(layer,), decay=decay)[0]


def linear_probes(
    model: TrunkModel,
    train: Iterable[Batch],
    test: Iterable[Batch],
    *,
    layers: Sequence[int] | None = None,
    decay: float = 1e-3,
) -> list[Probe]:
    """A probe for each of these layers, from 1; None: all. Each row passes the model once.

    A batch is read as it is: a model of pixel_lm reads a picture behind its start
    (`PixelLM.read`).
    """
    count = probed_layers(model)
    layers = range(1, count + 1) if layers is None else layers
    for layer in layers:
        if not 1 <= layer <= count:
            raise WeftError(f"layers are counted from 1 to {count}; got layer={layer}")
    if decay < 0:
        raise WeftError(f"decay is 0 or more; got decay={decay}")
    own, labels = features_of_layers(model, train, layers)
    others, truth = features_of_layers(model, test, layers)
    classes = int(labels.max()) + 1
    pairs = zip(layers, own, others, strict=True)
    return [_probe(layer, (a, labels), (b, truth), classes, decay) for layer, a, b in pairs]


def probed_layers(model: TrunkModel) -> int:
    """How many layers there are to look at."""
    check_walkable(model.config.trunk)
    return len(layers_of(model.trunk.stack))


def _probe(
    layer: int,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
    decay: float,
) -> Probe:
    """The probe of features and classes of one layer."""
    (features, labels), (others, truth) = train, test
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp(min=1e-12)
    features, others = (features - mean) / deviation, (others - mean) / deviation
    weight, bias = fitted(features, labels, classes, decay)

    def share(rows: Tensor, wanted: Tensor) -> float:
        return (F.linear(rows, weight, bias).argmax(-1) == wanted).double().mean().item()

    return Probe(layer, share(features, labels), share(others, truth), weight, bias)


def layer_features(model: TrunkModel, source: Iterable[Batch], layer: int) -> tuple[Tensor, Tensor]:
    """Mean-pooled features (rows, c) in float64 after a layer, from 1, and the classes (rows,)."""
    features, labels = features_of_layers(model, source, (layer,))
    return features[0], labels


@torch.no_grad()
def features_of_layers(
    model: TrunkModel, source: Iterable[Batch], layers: Sequence[int]
) -> tuple[list[Tensor], Tensor]:
    """`layer_features` of several layers, each (rows, c), and the classes (rows,)."""
    device, labels = next(model.parameters()).device, []
    found: list[list[Tensor]] = [[] for _ in layers]
    with evaluating(model):
        for batch in source:
            if batch.y is None:
                raise WeftError("a probe learns classes; this batch has none: give Batch.y")
            batch, classes = batch.to(device), batch.y.cpu()
            streams = walk(model.trunk, batch.x, batch.valid, batch.marks)
            for layer, features in zip(layers, found, strict=True):
                tokens = streams[layer - 1][:, model.trunk.registers :].double()  # (b, n, c)
                features.append(pooled(tokens, batch.valid, "mean").cpu())
            labels.append(classes)
    if not labels:
        raise WeftError("a probe needs rows; the source gave none")
    return [torch.cat(features) for features in found], torch.cat(labels)


def fitted(features: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """The weights (classes, c) and bias (classes,) of the best probe."""
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(features, weight, bias), labels)
        loss = loss + decay / 2 * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()

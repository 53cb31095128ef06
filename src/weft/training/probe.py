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

from collections.abc import Iterable
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
    check_walkable(model.config.trunk)
    layers = len(layers_of(model.trunk.stack))
    layer = (layers + 1) // 2 if layer is None else layer
    if not 1 <= layer <= layers:
        raise WeftError(f"layers are counted from 1 to {layers}; got layer={layer}")
    if decay < 0:
        raise WeftError(f"decay is 0 or more; got decay={decay}")
    features, labels = layer_features(model, train, layer)
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp(min=1e-12)
    features = (features - mean) / deviation
    weight, bias = fitted(features, labels, int(labels.max()) + 1, decay)
    others, truth = layer_features(model, test, layer)
    others = (others - mean) / deviation

    def share(rows: Tensor, wanted: Tensor) -> float:
        return (F.linear(rows, weight, bias).argmax(-1) == wanted).double().mean().item()

    return Probe(layer, share(features, labels), share(others, truth), weight, bias)


@torch.no_grad()
def layer_features(model: TrunkModel, source: Iterable[Batch], layer: int) -> tuple[Tensor, Tensor]:
    """Mean-pooled features (rows, c) in float64 after a layer, from 1, and the classes (rows,)."""
    device, found, labels = next(model.parameters()).device, [], []
    with evaluating(model):
        for batch in source:
            if batch.y is None:
                raise WeftError("a probe learns classes; this batch has none: give Batch.y")
            batch, classes = batch.to(device), batch.y.cpu()
            streams = walk(model.trunk, batch.x, batch.valid, batch.marks)
            tokens = streams[layer - 1][:, model.trunk.registers :].double()  # (b, n, c)
            found.append(pooled(tokens, batch.valid, "mean").cpu())
            labels.append(classes)
    if not found:
        raise WeftError("a probe needs rows; the source gave none")
    return torch.cat(found), torch.cat(labels)


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
